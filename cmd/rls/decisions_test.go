package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// awaitLines waits until a file has count lines, and returns its text.
func awaitLines(t *testing.T, path string, count int) string {
	t.Helper()
	var text []byte
	polltest.Until(t, maxWait, func() bool {
		text, _ = os.ReadFile(path)
		return strings.Count(string(text), "\n") >= count
	}, path)
	return string(text)
}

func TestDecisionLogIsOpenedAgainOnSIGHUPAndWhenMovedAway(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "decisions.log")
	service := start(t, []string{"DECISION_LOG=denied", "DECISION_LOG_PATH=" + path, "DECISION_LOG_HASH_KEY=k3y"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "4")
	text := awaitLines(t, path, 1)
	assert.Contains(t, text, `"rule":"shop > tenant","limit":"3 per year","limit_name":"yearly"`)
	assert.NotContains(t, text, "acme")

	require.NoError(t, os.Rename(path, path+".1"))
	require.NoError(t, service.cmd.Process.Signal(syscall.SIGHUP))
	polltest.Until(t, maxWait, func() bool { _, err := os.Stat(path); return err == nil })
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "2")
	awaitLines(t, path, 2)

	require.NoError(t, os.Rename(path, path+".2")) // without a signal
	polltest.Until(t, maxWait, func() bool { _, err := os.Stat(path); return err == nil })
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	require.NoError(t, service.stop())
	lastFile, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, 1, strings.Count(string(lastFile), "\n"), "the end writes the buffer")
}

func TestClosedStdoutEndsNoCall(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	service := startProgram(t, os.Args[0], writer, []string{"DECISION_LOG=all"}, "serve", "--limits", writeFile(t, "limits.yaml", threePerYear))
	require.NoError(t, writer.Close())
	require.NoError(t, reader.Close())
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	service.awaitLog("decision log not written")
	out, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	assert.Zero(t, code, out)
	_, body := get(t, "http://"+service.debug+"/metrics")
	assert.Contains(t, body, "\n"+`rls_decision_log_dropped_total{reason="write_error"} `)
	assert.NoError(t, service.stop())
}

func TestLogOfLevelDebugHasALineForEachCall(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"LOG_LEVEL=debug"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	service.awaitLog(`level=DEBUG msg="call answered" domain=shop descriptors="tenant=acme" code=OK rules="shop > tenant" source=local duration=`)
}

func TestPrivatePagesNeedATokenIfOneIsSet(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"ADMIN_TOKEN=ops:" + opsToken}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	explainPath := explain.Path + "?domain=shop&descriptor=tenant=acme"
	for _, path := range []string{explainPath, decisionsPath} {
		code, body := request(t, "GET", "http://"+service.debug+path, "", "")
		assert.Equal(t, http.StatusUnauthorized, code, path)
		assert.Contains(t, body, "send a token of ADMIN_TOKEN")
	}
	code, _ := request(t, "GET", "http://"+service.debug+explainPath, "", opsToken)
	assert.Equal(t, 200, code)
	service.awaitLog(`level=WARN msg="page refused"`)
}

func TestTokenOfADomainOpensOnlyPagesAboutThisDomain(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("s", 16)
	tokens := writeFile(t, "tokens.yaml", "- {name: shop-team, token: "+token+", domains: [shop], access: read}\n")
	service := start(t, []string{"ADMIN_TOKENS_FILE=" + tokens}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	out, errOut, code := rls(t, "explain", "--admin", service.debug, "--token", token, "-d", "shop", "tenant=acme")
	assert.Zero(t, code, errOut)
	assert.Contains(t, out, "limit: 3 per year")
	_, errOut, code = rls(t, "explain", "--admin", service.debug, "--token", token, "-d", "bank", "tenant=acme")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "the token of shop-team is only for the domains shop, and the query must name one of them (-d DOMAIN)")

	for query, want := range map[string]int{
		explain.Path + "?domain=shop&descriptor=tenant=acme":             http.StatusOK,
		explain.Path + "?domain=bank&descriptor=tenant=acme":             http.StatusForbidden,
		explain.Path + "?domain=shop&domain=bank&descriptor=tenant=acme": http.StatusForbidden,
		explain.Path + "?domain=&descriptor=tenant=acme":                 http.StatusForbidden,
		explain.Path + "?domain=shop;&descriptor=tenant=acme":            http.StatusForbidden,
		decisionsPath:                              http.StatusForbidden,
		decisionsPath + "?domain=bank":             http.StatusForbidden,
		decisionsPath + "?domain=bank&domain=shop": http.StatusForbidden,
		quotaPath + "?domain=shop":                 http.StatusForbidden,
	} {
		code, body := request(t, "GET", "http://"+service.debug+query, "", token)
		assert.Equal(t, want, code, "%s: %s", query, body)
	}
	code, _ = request(t, "GET", "http://"+service.debug+explain.Path+"?domain=shop&descriptor=tenant=acme", "", "another-token-0123456789")
	assert.Equal(t, http.StatusUnauthorized, code)
}

func TestTailOfATokenOfADomainShowsOnlyThisDomain(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("s", 16)
	tokens := writeFile(t, "tokens.yaml", "- {name: shop-team, token: "+token+", domains: [shop]}\n")
	service := start(t, []string{"ADMIN_TOKENS_FILE=" + tokens}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+service.debug+decisionsPath+"?domain=shop", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	rls(t, "hit", "-a", service.grpc, "-d", "bank", "tenant=secret")
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), "acme") {
		assert.NotContains(t, lines.Text(), "secret")
	}
	assert.Contains(t, lines.Text(), `"domain":"shop"`)
}

func TestMistakeInTokensFileIsShown(t *testing.T) {
	t.Parallel()
	tokens := writeFile(t, "tokens.yaml", "- {name: alice, token: "+strings.Repeat("a", 16)+"}\n")
	service := start(t, []string{"ADMIN_TOKENS_FILE=" + tokens}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	shows := func(path, text string) bool {
		_, body := get(t, "http://"+service.debug+path)
		return strings.Contains(body, text)
	}
	require.NoError(t, os.WriteFile(tokens, []byte("- {name: bob, token: short}\n"), 0o600))
	polltest.Until(t, maxWait, func() bool { return shows(live.SnapshotPath, "Admin tokens rejected") })
	assert.True(t, shows(live.SnapshotPath, "no replica starts with this file: tokens:1:3: token: got 5 bytes, want at least 16"))
	assert.True(t, shows("/metrics", "rls_tokens_file_valid 0"))
	require.NoError(t, os.WriteFile(tokens, []byte("- {name: bob, token: "+strings.Repeat("b", 16)+"}\n"), 0o600))
	polltest.Until(t, maxWait, func() bool {
		return !shows(live.SnapshotPath, "Admin tokens rejected") && shows("/metrics", "rls_tokens_file_valid 1")
	})
}

func TestStreamEndsWhenItsTokenIsRemoved(t *testing.T) {
	t.Parallel()
	token, ownToken := strings.Repeat("s", 16), strings.Repeat("o", 16)
	tokenOfOps := "- {name: ops, token: " + ownToken + "}\n"
	tokens := writeFile(t, "tokens.yaml", tokenOfOps+"- {name: thief, token: "+token+"}\n")
	service := start(t, []string{"ADMIN_TOKENS_FILE=" + tokens}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	openStream := func(token string) io.Reader {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+service.debug+decisionsPath, nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		require.Equal(t, http.StatusOK, resp.StatusCode)
		return resp.Body
	}
	stolen, own := openStream(token), openStream(ownToken)
	require.NoError(t, os.WriteFile(tokens, []byte(tokenOfOps), 0o600))
	_, err := io.Copy(io.Discard, stolen) // returns at the end of the stream
	require.NoError(t, err)

	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	lines := bufio.NewScanner(own)
	for lines.Scan() && !strings.Contains(lines.Text(), "acme") {
	}
	assert.Contains(t, lines.Text(), `"domain":"shop"`, "a stream with a valid token goes on")
}

func TestBrowserSignsInForReadingOnly(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"ADMIN_TOKEN=ops:" + opsToken}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	send := func(method, path, password string) (code int, header http.Header) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+service.debug+path, strings.NewReader("warn"))
		require.NoError(t, err)
		req.SetBasicAuth("anybody", password)
		resp, err := http.DefaultTransport.RoundTrip(req)
		require.NoError(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode, resp.Header
	}
	code, header := send("GET", signInPath, "wrong")
	assert.Equal(t, http.StatusUnauthorized, code)
	assert.Contains(t, header.Get("WWW-Authenticate"), "Basic")
	code, header = send("GET", signInPath, opsToken)
	assert.Equal(t, http.StatusSeeOther, code)
	assert.Equal(t, "/", header.Get("Location"))
	explainPath := explain.Path + "?domain=shop&descriptor=tenant=acme"
	for _, request := range []struct {
		method, path string
		want         int
	}{
		{"GET", explainPath, http.StatusOK},
		{"PUT", explainPath, http.StatusUnauthorized},
		{"GET", "/admin/overrides", http.StatusUnauthorized},
	} {
		code, _ := send(request.method, request.path, opsToken)
		assert.Equal(t, request.want, code, request)
	}
}

// request sends a request, with a token unless it is empty.
func request(t *testing.T, method, url, body, token string) (code int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func TestTailShowsDecisionsOfRunningService(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", threePerYear))
	tail := command(t, nil, "tail", "--admin", service.debug, "--code", "over_limit", "--entry", "tenant=acme")
	var out syncBuffer
	tail.Stdout = &out
	require.NoError(t, tail.Start())
	polltest.Until(t, maxWait, func() bool {
		rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
		return strings.Contains(out.String(), "OVER_LIMIT")
	})
	assert.Regexp(t, `^\d\d:\d\d:\d\d\.\d{3}  OVER_LIMIT  tenant=acme  shop > tenant: 3 per year  "yearly"  0 left  local  `, out.String())
	require.NoError(t, tail.Process.Signal(os.Interrupt))
	assert.NoError(t, tail.Wait(), "an interrupt is no error")
	assert.NoError(t, service.stop())
}
