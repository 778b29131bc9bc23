package redis_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestPasswordChangesUnderLoadWithoutAFailedCall(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client(t)
	setUser(t, admin, rights)
	file := filepath.Join(t.TempDir(), "auth")
	require.NoError(t, os.WriteFile(file, []byte("rls:secret-1\n"), 0o600))
	o := redis.Options{Main: redis.Server{URL: s.Addr, AuthFile: file}, KeyPrefix: "myprefix:", Timeout: testTimeout}
	l := open(t, o)
	lim := perDay(t, 1_000_000_000)
	load := startLoad(l, lim, 4, 100)
	defer load.stop()
	admitMore := func() {
		admittedBefore := load.admitted.Load()
		polltest.Until(t, testTimeout, func() bool { return load.admitted.Load() > admittedBefore+1000 })
	}

	admitMore()
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "rls", ">secret-2").Err(), "both passwords are valid")
	admitMore()
	require.NoError(t, os.WriteFile(file, []byte("rls:secret-2\n"), 0o600))
	admitMore()
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "rls", "<secret-1").Err(), "only the new password is valid")
	admitMore()
	load.stop()
	load.requireNoErrors(t)

	reconnect := func() {
		require.NoError(t, admin.ClientKillByFilter(t.Context(), "USER", "rls").Err())
		polltest.Until(t, testTimeout, func() bool { return take(l, hit("key", lim, 1))[0].Err == nil })
	}
	reconnect()
	require.NoError(t, os.WriteFile(file, nil, 0o600), "the file is half written")
	reconnect() // with the last login
	err := take(open(t, o), hit("key", lim, 1))[0].Err
	require.Error(t, err, "a new client has no last login")
	assert.NotContains(t, err.Error(), "secret")
}

func TestCheckNamesTheUserThatLogsIn(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser(t, s.Client(t), rights+" -zadd")
	writeFile := func(text string) string {
		name := filepath.Join(t.TempDir(), "auth")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	for name, server := range map[string]redis.Server{
		"Auth":              {URL: s.Addr, Auth: "rls:secret-1"},
		"URL":               {URL: "redis://rls:secret-1@" + s.Addr},
		"file":              {URL: s.Addr, AuthFile: writeFile("rls:secret-1\n")},
		"file and URL":      {URL: "redis://rls:old@" + s.Addr, AuthFile: writeFile("secret-1")},
		"file over the URL": {URL: "redis://other:old@" + s.Addr, AuthFile: writeFile("rls:secret-1")},
	} {
		findings := problems(t, open(t, redis.Options{Main: server, KeyPrefix: "myprefix:", Timeout: testTimeout}))
		if assert.Len(t, findings, 1, name) {
			assert.Equal(t, "run ACL SETUSER rls +zadd", findings[0].Advice, name)
			assert.Contains(t, findings[0].Text, "the user rls may not run zadd", name)
		}
	}
}

func TestAuthFileMustHaveALogin(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{"secret": "", "rls:secret\n": "", strings.Repeat("x", 64<<10): "", strings.Repeat("x", 64<<10+1): "got 65537 bytes", "": "want a password or user:password", " \n": "want a password"} {
		file := filepath.Join(dir, "auth")
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		_, err := redis.ReadAuthFile(file)
		if want == "" {
			assert.NoError(t, err, content)
		} else {
			assert.ErrorContains(t, err, want, "%q", content)
		}
	}
	_, err := redis.ReadAuthFile(filepath.Join(dir, "missing"))
	assert.ErrorContains(t, err, "no such file")
}
