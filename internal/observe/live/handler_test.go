package live

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves the pages of r. Only callers with the header Private see keys.
func (r *liveFixture) serve() *httptest.Server {
	h := Handlers{Live: r.Live, SeesKeys: func(req *http.Request) bool { return req.Header.Get("Private") != "" }}
	mux := http.NewServeMux()
	mux.HandleFunc(SnapshotPath, h.Snapshot)
	mux.HandleFunc(StreamPath, h.Stream)
	mux.HandleFunc(RulesPath, h.Rules)
	mux.HandleFunc(RulePath, h.Rule)
	server := httptest.NewServer(mux)
	r.t.Cleanup(server.Close)
	return server
}

// open gets url and returns the response, which stays open until the test ends.
func open(t testing.TB, ctx context.Context, url string, isPrivate bool) *http.Response {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	if isPrivate {
		req.Header.Set("Private", "yes")
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close(); http.DefaultClient.CloseIdleConnections() })
	return resp
}

// get gets url and decodes the JSON of a good response into answer.
func get(t testing.TB, url string, isPrivate bool, answer any) (code int, header http.Header) {
	resp := open(t, t.Context(), url, isPrivate) //nolint:bodyclose // open closes it at the end of the test
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	if resp.StatusCode == http.StatusOK {
		require.NoError(t, json.Unmarshal(text, answer))
	}
	return resp.StatusCode, resp.Header
}

func TestOnlyPrivateCallersSeeKeys(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t, nil)
	fixture.call("tenant=secret")
	fixture.takeSample(time.Now())
	server := fixture.serve()
	var privateSnapshot, publicSnapshot, secondPublicSnapshot Snapshot
	_, header := get(t, server.URL+SnapshotPath, true, &privateSnapshot)
	assert.Equal(t, "application/json", header.Get("Content-Type"))
	assert.Equal(t, "no-store", header.Get("Cache-Control"))
	assert.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
	assert.Equal(t, "shop|tenant=secret", privateSnapshot.Keys.Hottest[0].Key)
	get(t, server.URL+SnapshotPath, false, &publicSnapshot)
	assert.Equal(t, KeysHashed, publicSnapshot.Keys.Mode)
	assert.True(t, publicSnapshot.Keys.Hidden)
	assert.False(t, privateSnapshot.Keys.Hidden)
	assert.Regexp(t, "^#[0-9a-f]{16}$", publicSnapshot.Keys.Hottest[0].Key)
	get(t, server.URL+SnapshotPath, false, &secondPublicSnapshot)
	assert.Equal(t, publicSnapshot.Keys.Hottest[0].Key, secondPublicSnapshot.Keys.Hottest[0].Key)

	var rule RuleAnswer
	get(t, server.URL+RulePath+"?path=shop+%3E+tenant", true, &rule)
	assert.Equal(t, "shop|tenant=secret", rule.Keys.Hottest[0].Key)
	assert.Equal(t, "tenant", rule.Rule.Label)
	get(t, server.URL+RulePath+"?path=shop+%3E+tenant", false, &rule)
	assert.Equal(t, publicSnapshot.Keys.Hottest[0].Key, rule.Keys.Hottest[0].Key)
	code, _ := get(t, server.URL+RulePath+"?path=none", true, nil)
	assert.Equal(t, http.StatusNotFound, code)

	hashedFixture := newFixture(t, func(o *Options) { o.Keys = KeysHashed })
	hashedFixture.call("tenant=secret")
	hashedFixture.takeSample(time.Now())
	get(t, hashedFixture.serve().URL+SnapshotPath, false, &privateSnapshot)
	assert.False(t, privateSnapshot.Keys.Hidden, "a token shows hashes too")
	get(t, hashedFixture.serve().URL+SnapshotPath, true, &privateSnapshot)
	assert.Equal(t, KeysHashed, privateSnapshot.Keys.Mode)
	assert.NotEqual(t, publicSnapshot.Keys.Hottest[0].Key, privateSnapshot.Keys.Hottest[0].Key, "each process has its own hashes")
}

func TestRulesAreFoundByName(t *testing.T) {
	t.Parallel()
	s := newFixture(t, nil).serve()
	var answer RulesAnswer
	get(t, s.URL+RulesPath+"?filter=PATH", false, &answer)
	require.Len(t, answer.Rules, 1)
	assert.Equal(t, "shop > tenant > path", answer.Rules[0].Path)
	get(t, s.URL+RulesPath, false, &answer)
	assert.Len(t, answer.Rules, 5)
	get(t, s.URL+RulesPath+"?filter=zzz", false, &answer)
	assert.Equal(t, RulesAnswer{Rules: []Rule{}}, answer)
}

// readEvent returns the data of the next event of a stream.
func readEvent(t *testing.T, stream *bufio.Scanner) (snapshot Snapshot) {
	for stream.Scan() {
		if text, ok := strings.CutPrefix(stream.Text(), "data: "); ok {
			require.NoError(t, json.Unmarshal([]byte(text), &snapshot))
			return snapshot
		}
	}
	require.NoError(t, stream.Err())
	t.Fatal("the stream has ended")
	return snapshot
}

func newScanner(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	return s
}

func TestStreamSendsASnapshotEachSecond(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t, nil)
	server := fixture.serve()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); fixture.Run(ctx) }()
	defer func() { stop(); <-done }()
	fixture.call("tenant=secret")
	privateStream, publicStream := open(t, t.Context(), server.URL+StreamPath, true), open(t, t.Context(), server.URL+StreamPath, false) //nolint:bodyclose // open closes them
	assert.Equal(t, "text/event-stream", privateStream.Header.Get("Content-Type"))
	privateEvents, publicEvents := newScanner(privateStream.Body), newScanner(publicStream.Body)
	lastSnapshot := readEvent(t, privateEvents)
	for range 2 {
		nextSnapshot := readEvent(t, privateEvents)
		assert.True(t, nextSnapshot.Time.After(lastSnapshot.Time))
		lastSnapshot = nextSnapshot
	}
	assert.Equal(t, "shop|tenant=secret", lastSnapshot.Keys.Hottest[0].Key)
	readEvent(t, publicEvents)
	assert.Equal(t, KeysHashed, readEvent(t, publicEvents).Keys.Mode)
}

func TestViewersBeyondTheMaximumAreRefused(t *testing.T) {
	t.Parallel()
	fixture := newFixture(t, nil)
	server := fixture.serve()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range maxViewers {
		require.Equal(t, http.StatusOK, open(t, ctx, server.URL+StreamPath, true).StatusCode) //nolint:bodyclose // open closes it
	}
	refusedResponse := open(t, ctx, server.URL+StreamPath, true) //nolint:bodyclose // open closes it
	text, err := io.ReadAll(refusedResponse.Body)
	require.NoError(t, err)
	assert.Equal(t, http.StatusServiceUnavailable, refusedResponse.StatusCode)
	assert.Contains(t, string(text), "20 viewers are connected, which is the maximum")
	assert.NotEmpty(t, refusedResponse.Header.Get("Retry-After"))

	cancel() // all viewers leave
	require.Eventually(t, func() bool { return len(fixture.viewers) == 0 }, 30*time.Second, 10*time.Millisecond)
	assert.Equal(t, http.StatusOK, open(t, t.Context(), server.URL+StreamPath, true).StatusCode) //nolint:bodyclose // open closes it
}
