package faults_test

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// TestNoCallFailsWhileTokensChange runs rls-aws-token beside a backend under load. Redis accepts the last two tokens
// only, as AWS accepts young tokens only.
func TestNoCallFailsWhileTokensChange(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "rls-aws-token")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "..", "deploy", "rls-aws-token")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	tokenFile, authFile := filepath.Join(dir, "written"), filepath.Join(dir, "auth")
	// Two signatures differ if their times differ by a second.
	cmd := exec.Command(program, "-name", "limits", "-user", "rls", "-region", "eu-west-1", "-file", tokenFile, "-interval", "1s")
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY=example")
	require.NoError(t, proctest.Start(cmd))
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})

	server := redistest.Start(t)
	admin := server.Client(t)
	var tokens []string
	passOnToken := func() bool { // reports whether there is a new token, which Redis and then the backend know
		text, err := redis.ReadAuthFile(tokenFile)
		_, token, _ := strings.Cut(text, ":")
		if err != nil || len(tokens) > 0 && tokens[len(tokens)-1] == token {
			return false
		}
		signedURL, err := url.Parse("http://" + token)
		require.NoError(t, err)
		require.NotEmpty(t, signedURL.Query().Get("X-Amz-Signature"))
		tokens = append(tokens, token)
		rights := []any{"ACL", "SETUSER", "rls", "on", "allkeys", "+@all", ">" + token}
		if n := len(tokens); n > 2 {
			rights = append(rights, "<"+tokens[n-3])
		}
		require.NoError(t, admin.Do(t.Context(), rights...).Err())
		require.NoError(t, os.WriteFile(authFile+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(authFile+".new", authFile))
		return true
	}
	polltest.Until(t, 20*time.Second, passOnToken)

	l, err := redis.New(redis.Options{Main: redis.Server{URL: server.Addr, AuthFile: authFile}, Timeout: 5 * time.Second})
	require.NoError(t, err)
	defer l.Close()
	lim, err := limit.New(limit.Spec{Requests: 1_000_000_000, Unit: limit.Day})
	require.NoError(t, err)
	takeOne := func() error {
		results := make([]backend.Result, 1)
		l.Take(context.Background(), time.Now(), []backend.Hit{{Key: []byte("key"), Limit: lim, N: 1}}, results)
		return results[0].Err
	}
	var calls, failedCalls atomic.Int64
	var isStopped atomic.Bool
	callsDone := make(chan struct{})
	go func() {
		defer close(callsDone)
		for !isStopped.Load() {
			if takeOne() != nil {
				failedCalls.Add(1)
			}
			calls.Add(1)
		}
	}()
	for range 4 {
		callsBefore := calls.Load()
		polltest.Until(t, 20*time.Second, passOnToken)
		polltest.Until(t, 20*time.Second, func() bool { return calls.Load() > callsBefore+100 })
	}
	isStopped.Store(true)
	<-callsDone
	assert.Zero(t, failedCalls.Load(), "of %d calls", calls.Load())

	require.NoError(t, admin.ClientKillByFilter(t.Context(), "USER", "rls").Err())
	polltest.Until(t, 20*time.Second, func() bool { return takeOne() == nil }) // with the newest token
}
