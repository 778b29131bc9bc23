package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestConnectReachesEachKindOfRedis(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/redis.sock"
	singleServer := redistest.Start(t, "--unixsocket", path)
	require.NoError(t, singleServer.Client(t).ConfigSet(t.Context(), "requirepass", "secret-1").Err())
	certs := redistest.NewCerts(t, "redis.test")
	conf, err := clienttls.Files{CA: certs.CA, Cert: certs.ClientCert, Key: certs.ClientKey, SkipHostname: true}.Config()
	require.NoError(t, err)
	tlsServer := redistest.StartTLS(t, certs)
	cluster, sentinels := redistest.StartCluster(t, 3, false), redistest.StartSentinels(t)
	for _, c := range []struct {
		name     string
		server   redis.Server
		wantName string
	}{
		{"password", redis.Server{URL: singleServer.Addr, Auth: "secret-1"}, singleServer.Addr},
		{"URL", redis.Server{URL: "redis://:secret-1@" + singleServer.Addr + "/3"}, singleServer.Addr},
		{"socket", redis.Server{URL: path, Auth: "secret-1", PoolSize: 1}, path},
		{"TLS", redis.Server{URL: tlsServer.Addr, TLS: conf}, tlsServer.Addr},
		{"cluster", redis.Server{Kind: redis.Cluster, URL: cluster.URL()}, cluster.URL()},
		{"sentinels", redis.Server{Kind: redis.Sentinel, URL: sentinels.URL()}, sentinels.URL()},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, name, err := redis.Connect(c.server, testTimeout)
			require.NoError(t, err)
			defer client.Close()
			assert.Equal(t, c.wantName, name)
			require.NoError(t, client.Set(t.Context(), "key", c.name, 0).Err())
			assert.Equal(t, c.name, client.Get(t.Context(), "key").Val())
		})
	}
}

func TestConnectRejectsBadServers(t *testing.T) {
	for wantText, s := range map[string]redis.Server{
		"URL: got none":                   {},
		"redis://user:password@host:port": {URL: "user:secret-1@a:1"},
	} {
		_, _, err := redis.Connect(s, time.Second)
		require.ErrorContains(t, err, wantText)
		assert.NotContains(t, err.Error(), "secret")
	}
}

func TestConnectedClientRetriesAfterALostConnection(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client, _, err := redis.Connect(redis.Server{URL: s.Addr}, testTimeout)
	require.NoError(t, err)
	defer client.Close()
	for range 3 {
		require.NoError(t, client.Ping(t.Context()).Err())
		require.NoError(t, s.Client(t).ClientKillByFilter(t.Context(), "TYPE", "normal").Err())
	}
	require.NoError(t, client.Ping(t.Context()).Err())
}
