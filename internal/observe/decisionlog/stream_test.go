package decisionlog

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

const maxWait = 20 * time.Second

func TestStreamSendsSelectedRecordsAtOnce(t *testing.T) {
	hub := NewHub(time.Now, NewHash("key"))
	rateLimiter := newService(t, nil, nil, hub)
	server := httptest.NewServer(hub)
	defer server.Close()
	resp, err := http.Get(server.URL + "?code=OVER_LIMIT&entry=trial%3Da")
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, "application/x-ndjson", resp.Header.Get("Content-Type"))

	lines := bufio.NewScanner(resp.Body)
	for range 3 {
		_, err = rateLimiter.ShouldRateLimit(t.Context(), request("tenant=a", "trial=a", "trial=b"))
		require.NoError(t, err)
		require.True(t, lines.Scan())
		var l Line
		require.NoError(t, json.Unmarshal(lines.Bytes(), &l))
		assert.Equal(t, []Entry{{"trial", "780c3db4ce3de5b9"}}, l.Descriptor)
	}
	resp.Body.Close()
	polltest.Until(t, maxWait, func() bool { return len(*hub.subscribers.Load()) == 0 })
}

func TestStreamRejectsWrongRequests(t *testing.T) {
	hub := NewHub(time.Now, nil)
	for _, test := range []struct {
		method, query string
		subscribers   int
		code          int
		want          string
	}{
		{"POST", "", 0, 405, "decisions: got method POST, want GET\n"},
		{"GET", "?codes=OK", 0, 400, "filter: got \"codes\", want domain, rule, code, source or entry\n"},
		{"GET", "?per_second=0", 0, 400, "per_second: got \"0\", want a number from 1 to 4096\n"},
		{"GET", "", MaxSubscribers, 503, "live decisions: got 17 subscribers, want at most 16; close another one\n"},
	} {
		for range test.subscribers {
			subscribe(t, hub, Filter{}, 1)
		}
		w := httptest.NewRecorder()
		hub.ServeHTTP(w, httptest.NewRequest(test.method, "/decisions"+test.query, nil))
		assert.Equal(t, test.code, w.Code)
		assert.Equal(t, test.want, w.Body.String())
	}
}

// pipeWriter is a ResponseWriter that blocks until the other end of the pipe reads.
type pipeWriter struct{ *io.PipeWriter }

func (pipeWriter) Header() http.Header { return http.Header{} }
func (pipeWriter) WriteHeader(int)     {}
func (pipeWriter) Flush()              {}

func TestStreamReportsDropsAndSendsHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := NewHub(time.Now, nil)
		rateLimiter := newService(t, nil, nil, hub)
		pipeReader, writer := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			hub.ServeHTTP(pipeWriter{writer}, httptest.NewRequest(http.MethodGet, "/decisions", nil))
		}()
		reader := bufio.NewReader(pipeReader)
		readLine := func() string {
			line, err := reader.ReadString('\n')
			require.NoError(t, err)
			return line
		}
		var emptyBuffer [0]byte
		_, _ = pipeReader.Read(emptyBuffer[:]) // ends the first write, which is empty
		synctest.Wait()
		for range 2 * streamBuffer {
			_, err := rateLimiter.ShouldRateLimit(t.Context(), request("other=x"))
			require.NoError(t, err)
		}
		records, drops := 0, ""
		for drops == "" {
			if line := readLine(); strings.Contains(line, `"dropped"`) {
				drops = line
			} else {
				records++
			}
		}
		var l Line
		require.NoError(t, json.Unmarshal([]byte(drops), &l))
		assert.EqualValues(t, 2*streamBuffer, uint64(records)+l.Dropped)
		assert.NotZero(t, l.Dropped)

		start := time.Now()
		assert.Equal(t, "\n", readLine())
		assert.LessOrEqual(t, time.Since(start), HeartbeatPause)
		pipeReader.Close()
		<-done
	})
}

func TestStreamWithPerSecondSendsRecentRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := NewHub(time.Now, nil)
		rateLimiter := newService(t, nil, nil, hub)
		pipeReader, writer := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			hub.ServeHTTP(pipeWriter{writer}, httptest.NewRequest(http.MethodGet, "/decisions?per_second=5", nil))
		}()
		lines := make(chan Line, 1000)
		go func() {
			for reader := bufio.NewScanner(pipeReader); reader.Scan(); {
				var l Line
				if len(reader.Bytes()) > 0 && assert.NoError(t, json.Unmarshal(reader.Bytes(), &l)) {
					lines <- l
				}
			}
		}()
		var droppedLines uint64
		for second := range 3 {
			synctest.Wait()
			for range 100 {
				_, err := rateLimiter.ShouldRateLimit(t.Context(), request("other=x"))
				require.NoError(t, err)
				synctest.Wait()
			}
			time.Sleep(time.Second)
			synctest.Wait()
			records := 0
			for len(lines) > 0 {
				l := <-lines
				if l.Dropped > 0 {
					droppedLines += l.Dropped
					assert.Equal(t, "more than 5 per second", l.Reason)
				} else {
					records++
				}
			}
			assert.Contains(t, []int{5, 10}, records, "second %d", second) // 5 records in the buffer wait for the next second
		}
		assert.EqualValues(t, 3*100-15-5, droppedLines, "all other records are dropped")
		pipeReader.Close()
		<-done
	})
}
