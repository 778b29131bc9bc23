package decisionlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dropCounts returns the numbers of dropped records by reason.
func dropCounts(counts map[DropReason]uint64) (droppedByReason [dropReasonCount]uint64) {
	for reason, count := range counts {
		droppedByReason[reason] = count
	}
	return droppedByReason
}

// fullDisk is a Writer that writes the first bytes of a line and fails, until hasSpace is set.
type fullDisk struct {
	bytes.Buffer
	hasSpace atomic.Bool
}

func (w *fullDisk) Write(p []byte) (int, error) {
	if w.hasSpace.Load() {
		return w.Buffer.Write(p)
	}
	n, _ := w.Buffer.Write(p[:min(10, len(p))])
	return n, errors.New("no space left on device")
}

// logFixture is a running Log inside a bubble of synctest.
type logFixture struct {
	t *testing.T
	*Log
	rateLimiter *service.Service
	events      bytes.Buffer // the log of the service
	stop        func()
}

func startLog(t *testing.T, o LogOptions) *logFixture {
	t.Helper()
	f := &logFixture{t: t}
	o.Log = slog.New(slog.NewTextHandler(&f.events, nil))
	f.Log = NewLog(o)
	f.rateLimiter = newService(t, nil, nil, f.Log)
	ctx, cancel := context.WithCancel(t.Context())
	var goroutines sync.WaitGroup
	goroutines.Go(func() { f.Run(ctx) })
	f.stop = sync.OnceFunc(func() { cancel(); goroutines.Wait() })
	t.Cleanup(f.stop)
	return f
}

// call sends calls with one descriptor each.
func (f *logFixture) call(descriptors ...string) {
	f.t.Helper()
	for _, d := range descriptors {
		_, err := f.rateLimiter.ShouldRateLimit(f.t.Context(), request(d))
		require.NoError(f.t, err)
	}
	synctest.Wait()
}

// decodeLines returns the lines of a log.
func decodeLines(t *testing.T, text string) []Line {
	t.Helper()
	var lines []Line
	for line := range strings.Lines(text) {
		var l Line
		require.NoError(t, json.Unmarshal([]byte(line), &l), line)
		lines = append(lines, l)
	}
	return lines
}

func TestLogHasDenialsOrAllDecisions(t *testing.T) {
	for name, test := range map[string]struct {
		logsAll bool
		want    []Code
	}{
		"denials":       {false, []Code{OverLimit, OverLimit}},
		"all decisions": {true, []Code{OK, OK, OverLimit, OverLimit, OK}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				fixture := startLog(t, LogOptions{LogsAll: test.logsAll, SampledShare: 1, Writer: &out})
				fixture.call("tenant=a", "tenant=a", "tenant=a", "trial=x", "other=x")
				fixture.stop()
				var codes []Code
				for _, l := range decodeLines(t, out.String()) {
					codes = append(codes, l.Code)
				}
				assert.Equal(t, test.want, codes)
				assert.EqualValues(t, len(test.want), fixture.Stats().Written)
			})
		})
	}
}

func TestLogLineHasTheFieldsOfItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		fixture := startLog(t, LogOptions{SampledShare: 1, Writer: &out})
		fixture.call("trial=\x1b[2Jx\u009b\u202e\U000e0001é")
		fixture.stop()
		assert.Equal(t, `{"time":"2000-01-01T00:00:00Z","domain":"shop","descriptor":[{"key":"trial","value":"\u001b[2Jx\u009b\u202e\udb40\udc01é"}],"descriptor_index":0,`+
			`"rule":"shop > trial","limit":"0 per minute","requests_per_unit":0,"code":"OVER_LIMIT","overall_code":"OK","hits":1,"remaining":0,`+
			`"source":"`+decodeLines(t, out.String())[0].Source+`","degraded":false,"shadow":true,"duration_us":0}`+"\n", out.String())
		assert.Equal(t, "\x1b[2Jx\u009b\u202e\U000e0001é", decodeLines(t, out.String())[0].Descriptor[0].Value)
	})
}

func TestRecordHasTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for key, want := range map[string]string{"": "10.0.0.1 front-1", "key": NewHash("key").Value("10.0.0.1 front-1")} {
			var out bytes.Buffer
			fixture := startLog(t, LogOptions{LogsAll: true, SampledShare: 1, Writer: &out, Hash: NewHash(key)})
			rateLimiter := newService(t, nil, func(o *service.Options) { o.CallerHeader = "x-envoy-node" }, fixture.Log)
			ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4711}})
			_, err := rateLimiter.ShouldRateLimit(metadata.NewIncomingContext(ctx, metadata.Pairs("x-envoy-node", "front-1")), request("tenant=a"))
			require.NoError(t, err)
			fixture.stop()
			assert.Equal(t, want, decodeLines(t, out.String())[0].Caller)
		}
	})
}

func TestLogHashesValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		fixture := startLog(t, LogOptions{SampledShare: 1, LogsAll: true, Writer: &out, Hash: NewHash("key")})
		fixture.call("tenant=a", "tenant=a", "tenant=b")
		fixture.stop()
		lines := decodeLines(t, out.String())
		// printf a | openssl dgst -sha256 -hmac key
		assert.Equal(t, Entry{"tenant", "780c3db4ce3de5b9"}, lines[0].Descriptor[0])
		assert.Equal(t, lines[0].Descriptor, lines[1].Descriptor)
		assert.NotEqual(t, lines[0].Descriptor, lines[2].Descriptor)
		assert.NotEqual(t, lines[0].Descriptor[0].Value, NewHash("other").Value("a"))
	})
}

func TestSampledCallHasAllItsRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		fixture := startLog(t, LogOptions{SampledShare: 0.5, LogsAll: true, Writer: &out})
		for range 1000 {
			fixture.call("both=x")
		}
		fixture.stop()
		lines := decodeLines(t, out.String())
		assert.InDelta(t, 1000, len(lines), 200)
		for i, l := range lines {
			require.Equal(t, []string{"", "none"}[i%2], l.LimitName)
		}
		assert.Zero(t, len(lines)%2)
	})
}

func TestRateCapDropsRecordsAndReportsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		fixture := startLog(t, LogOptions{SampledShare: 1, MaxPerSecond: 4, Writer: &out})
		fixture.call("trial=x", "trial=x", "trial=x", "trial=x")
		time.Sleep(1500 * time.Millisecond)
		fixture.call("trial=x", "trial=x")
		fixture.stop()
		lines := decodeLines(t, out.String())
		require.Len(t, lines, 5)
		assert.EqualValues(t, 2, lines[2].Dropped)
		assert.Equal(t, "rate", lines[2].Reason)
		assert.Equal(t, Stats{4, dropCounts(map[DropReason]uint64{DroppedByRate: 2})}, fixture.Stats())
	})
}

func TestBusyKeyLosesItsOwnRecordsOnly(t *testing.T) {
	refuseCaller := func(caller string) func(*service.Options) {
		return func(o *service.Options) {
			o.AdmitCaller = func(context.Context, time.Time) error {
				return status.Errorf(codes.ResourceExhausted, "caller %s: too many calls", caller)
			}
		}
	}
	for name, test := range map[string]struct {
		busyDescriptors   []string // 1,000 records of each come first
		changeBusyService func(*service.Options)
		otherKeys         int // with three records each
	}{
		"one busy key":                    {[]string{"trial=hog"}, nil, 10},
		"two busy keys":                   {[]string{"trial=hog", "trial=hog2"}, nil, 8},
		"a busy key without a rule":       {[]string{"other=hog"}, nil, 10},
		"a refused caller with many keys": {[]string{"other=1", "other=2", "other=3", "other=4"}, refuseCaller("hog"), 10},
		"no busy key":                     {nil, nil, 30},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				fixture := startLog(t, LogOptions{LogsAll: true, SampledShare: 1, MaxPerSecond: 100, Writer: &out})
				busyService := newService(t, nil, test.changeBusyService, fixture.Log)
				for i := range 1000 * len(test.busyDescriptors) {
					_, _ = busyService.ShouldRateLimit(t.Context(), request(test.busyDescriptors[i%len(test.busyDescriptors)]))
				}
				for range 3 {
					for i := range test.otherKeys {
						fixture.call(fmt.Sprintf("trial=%d", i))
					}
				}
				fixture.stop()
				otherLines := 0
				for _, l := range decodeLines(t, out.String()) {
					if l.Dropped == 0 && !slices.Contains(test.busyDescriptors, FormatEntries(l.Descriptor)) {
						otherLines++
					}
				}
				// One of the keys can share its count with a busy key.
				assert.InDelta(t, 3*test.otherKeys, otherLines, 3)
			})
		})
	}
}

func TestCallsTogetherNeverExceedTheRateCap(t *testing.T) {
	const callers, calls, maxPerSecond = 4, 1000, 700
	for name, keys := range map[string]int{"one key": 1, "many keys": 4000} {
		t.Run(name, func(t *testing.T) {
			counts := newSecondCounts()
			var allowedCalls atomic.Int64
			var goroutines sync.WaitGroup
			for caller := range callers {
				goroutines.Go(func() {
					for i := range calls {
						if counts.addRecord(uint64((caller*calls+i)%keys), maxPerSecond) {
							allowedCalls.Add(1)
						}
					}
				})
			}
			goroutines.Wait()
			if keys > 1 {
				assert.EqualValues(t, maxPerSecond, allowedCalls.Load())
			} else {
				assert.InDelta(t, maxPerSecond/2, allowedCalls.Load(), callers)
			}
		})
	}
}

// blockedWriter is a Writer that blocks until unblocked is closed or has a value.
type blockedWriter struct{ unblocked chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) {
	<-w.unblocked
	return len(p), nil
}

func TestSlowWriterDropsRecordsAndDelaysNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := blockedWriter{make(chan struct{})}
		fixture := startLog(t, LogOptions{SampledShare: 1, Writer: out})
		start := time.Now()
		fixture.call("trial=x") // the writer takes this record, and blocks
		for range maxBufferedRecords + 7 {
			fixture.call("trial=x")
		}
		assert.Zero(t, time.Since(start))
		close(out.unblocked)
		fixture.stop()
		assert.Equal(t, Stats{maxBufferedRecords + 1, dropCounts(map[DropReason]uint64{DroppedByBuffer: 7})}, fixture.Stats())
	})
}

func TestWriteErrorsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &fullDisk{}
		fixture := startLog(t, LogOptions{SampledShare: 1, Writer: out})
		fixture.call("trial=x", "trial=y", "trial=z")
		out.hasSpace.Store(true)
		time.Sleep(time.Second)
		fixture.call("trial=after")
		fixture.stop()

		var wholeLines strings.Builder // parts of lines of one to three failed writes come first
		for line := range strings.Lines(out.String()) {
			if strings.HasSuffix(line, "}\n") {
				wholeLines.WriteString(line)
			}
		}
		require.True(t, strings.HasSuffix(out.String(), "\n"+wholeLines.String()), out.String())
		lines := decodeLines(t, wholeLines.String())
		require.Len(t, lines, 2)
		assert.EqualValues(t, 3, lines[0].Dropped)
		assert.Equal(t, "after", lines[1].Descriptor[0].Value)
		assert.Equal(t, Stats{1, dropCounts(map[DropReason]uint64{DroppedByWrite: 3})}, fixture.Stats())
		assert.Equal(t, 1, strings.Count(fixture.events.String(), "decision log not written"), fixture.events.String())
		assert.Equal(t, 1, strings.Count(fixture.events.String(), "decision log written again"))
	})
}

func TestLogWritesToTheFileAtItsPath(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, path string, f *logFixture)
		want   []string // the values of the new file
	}{
		"file moved away": {func(t *testing.T, path string, _ *logFixture) {
			require.NoError(t, os.Rename(path, path+".1"))
		}, []string{"after"}},
		"file removed": {func(t *testing.T, path string, _ *logFixture) {
			require.NoError(t, os.Remove(path))
		}, []string{"after"}},
		"directory moved away": {func(t *testing.T, path string, _ *logFixture) {
			require.NoError(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+"2"))
			time.Sleep(1500 * time.Millisecond)
			require.NoError(t, os.Mkdir(filepath.Dir(path), 0o750))
		}, []string{"after"}},
		"file truncated": {func(t *testing.T, path string, _ *logFixture) {
			require.NoError(t, os.Truncate(path, 0))
		}, []string{"after"}},
		"file reopened": {func(_ *testing.T, _ string, f *logFixture) { f.Reopen() }, []string{"before", "after"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "logs", "decisions.log")
			require.NoError(t, os.Mkdir(filepath.Dir(path), 0o750))
			synctest.Test(t, func(t *testing.T) {
				fixture := startLog(t, LogOptions{SampledShare: 1, Path: path})
				fixture.call("trial=before")
				test.change(t, path, fixture)
				time.Sleep(1500 * time.Millisecond)
				fixture.call("trial=after")
				fixture.stop()
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				var values []string
				for _, l := range decodeLines(t, string(text)) {
					values = append(values, l.Descriptor[0].Value)
				}
				assert.Equal(t, test.want, values)
			})
		})
	}
}

func TestLogStartsANewLineAfterPartOfALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.log")
	require.NoError(t, os.WriteFile(path, []byte(`{"time":"2026`), 0o600))
	synctest.Test(t, func(t *testing.T) {
		fixture := startLog(t, LogOptions{SampledShare: 1, Path: path})
		fixture.call("trial=a")
		fixture.call("trial=b")
		fixture.stop()
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		partOfLine, wholeLines, _ := strings.Cut(string(text), "\n")
		assert.Equal(t, `{"time":"2026`, partOfLine)
		assert.Len(t, decodeLines(t, wholeLines), 2)
	})
}

func TestMissingDirectoryIsLoggedAndStopsNoCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "decisions.log")
	synctest.Test(t, func(t *testing.T) {
		fixture := startLog(t, LogOptions{SampledShare: 1, Path: path})
		fixture.call("trial=x")
		time.Sleep(5 * time.Second)
		fixture.stop()
		assert.Equal(t, 1, strings.Count(fixture.events.String(), "decision log not written"))
		assert.Contains(t, fixture.events.String(), "no such file or directory")
		assert.Equal(t, dropCounts(map[DropReason]uint64{DroppedByWrite: 1}), fixture.Stats().Dropped)
	})
}

func TestCallWithoutRecordsDoesNotAlloc(t *testing.T) {
	l := NewLog(LogOptions{SampledShare: 1, Writer: io.Discard})
	callLog := CallLog{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	calls := &observedCalls{observers: []service.Observer{l, callLog}}
	rateLimiter := newService(t, nil, nil, calls)
	_, err := rateLimiter.ShouldRateLimit(t.Context(), request("tenant=x", "free=x"))
	require.NoError(t, err)
	assert.Zero(t, calls.allocs)
}

// observedCalls counts the allocations of observers.
type observedCalls struct {
	observers []service.Observer
	allocs    float64
}

func (o *observedCalls) CallAnswered(ctx context.Context, c *service.Call) {
	o.allocs = testing.AllocsPerRun(100, func() {
		for _, observer := range o.observers {
			observer.CallAnswered(ctx, c)
		}
	})
}

func TestCallLogHasOneLineForEachCall(t *testing.T) {
	var out bytes.Buffer
	level := new(slog.LevelVar)
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
	rateLimiter := newService(t, nil, nil, CallLog{Log: log, Hash: NewHash("key")})
	_, _ = rateLimiter.ShouldRateLimit(t.Context(), request("tenant=a"))
	assert.Empty(t, out.String())
	level.Set(slog.LevelDebug)
	_, _ = rateLimiter.ShouldRateLimit(t.Context(), request("both=a,x=a", "both=a", "other=a"))
	_, _ = rateLimiter.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "shop"})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	assert.Regexp(t, `level=DEBUG msg="call answered" domain=shop descriptors="both=780c3db4ce3de5b9,x=780c3db4ce3de5b9; both=780c3db4ce3de5b9; other=780c3db4ce3de5b9" code=OVER_LIMIT rules="shop > both" source=\w+ duration=\S+$`, lines[0])
	assert.Regexp(t, `code=ERROR .*error=".*descriptor list must not be empty"$`, lines[1])
}
