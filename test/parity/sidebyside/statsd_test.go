//go:build parity

package sidebyside

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// statsdServer adds up the counters and the timed calls that a program sends.
type statsdServer struct {
	port string

	mu   sync.Mutex
	sums map[string]float64 // by name and sorted tags
}

// listenStatsd starts a statsd server on network, which is tcp or udp.
func listenStatsd(t *testing.T, network string) *statsdServer {
	t.Helper()
	s := &statsdServer{sums: map[string]float64{}}
	var addr net.Addr
	if network == "udp" {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		addr = conn.LocalAddr()
		go func() {
			packet := make([]byte, 1<<16)
			for {
				n, _, err := conn.ReadFrom(packet)
				if err != nil {
					return
				}
				s.addLines(bytes.NewReader(packet[:n]))
			}
		}()
	} else {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		addr = listener.Addr()
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go s.addLines(conn)
			}
		}()
	}
	_, port, err := net.SplitHostPort(addr.String())
	require.NoError(t, err)
	s.port = port
	return s
}

// addLines adds the lines of r to the sums.
func (s *statsdServer) addLines(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		fields := strings.Split(rest, "|")
		if !strings.HasPrefix(name, "ratelimit.service.") && !strings.HasPrefix(name, "ratelimit_server.ShouldRateLimit.") && !strings.HasPrefix(name, "hits.") {
			continue
		}
		if len(fields) < 2 || fields[1] != "c" && fields[1] != "ms" {
			continue
		}
		value, _ := strconv.ParseFloat(fields[0], 64)
		if fields[1] == "ms" {
			value = 1 // times differ, so only calls are counted
		}
		for _, field := range fields[2:] {
			if rate, hasRate := strings.CutPrefix(field, "@"); hasRate {
				share, _ := strconv.ParseFloat(rate, 64)
				value /= share
			}
			if list, hasTags := strings.CutPrefix(field, "#"); hasTags {
				tags := strings.Split(list, ",")
				slices.Sort(tags)
				name += " " + strings.Join(tags, ",")
			}
		}
		s.mu.Lock()
		s.sums[name] = math.Round((s.sums[name]+value)*1000) / 1000 // rates have six decimals
		s.mu.Unlock()
	}
}

// counts returns the sums so far.
func (s *statsdServer) counts() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	roundedSums := map[string]float64{}
	for name, sum := range s.sums {
		roundedSums[name] = math.Round(sum)
	}
	return roundedSums
}

func TestStatsdLinesEqualThoseOfTheIncumbent(t *testing.T) {
	for name, test := range map[string]struct {
		network string
		env     []string
	}{
		"TCP": {"tcp", []string{"USE_STATSD=true"}},
		"UDP": {"udp", []string{"USE_STATSD=true", "STATSD_PROTOCOL=udp"}},
		"DogStatsD": {"udp", []string{
			"USE_STATSD=false", "USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=NEAR,HITS",
			`DOG_STATSD_MOGRIFIER_NEAR_PATTERN=^(.*)\.near_limit$`, "DOG_STATSD_MOGRIFIER_NEAR_NAME=hits.near", "DOG_STATSD_MOGRIFIER_NEAR_TAGS=rule:$1",
			`DOG_STATSD_MOGRIFIER_HITS_PATTERN=^ratelimit\.service\.rate_limit\.([^.]+)\.(.+)_hits$`, "DOG_STATSD_MOGRIFIER_HITS_NAME=hits.$1", "DOG_STATSD_MOGRIFIER_HITS_TAGS=rule:$2,all:$0",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			redis := redistest.Start(t)
			limits := limitsFiles{"limits": strings.ReplaceAll(limits, "QUOTA", "quota_mode: true")}
			env := append([]string{
				"REDIS_URL=" + redis.Addr, "REDIS_SOCKET_TYPE=tcp", "LOCAL_CACHE_SIZE_IN_BYTES=0",
				"USE_PROMETHEUS=false", "STATSD_HOST=127.0.0.1", "STATS_FLUSH_INTERVAL=1s", "EXTRA_TAGS=dc:eu.1,app:x",
			}, test.env...)
			ourServer, theirServer := listenStatsd(t, test.network), listenStatsd(t, test.network)
			ours := startRLS(t, limits, append(slices.Clip(env), "STATSD_PORT="+ourServer.port)...)
			theirs := startIncumbent(t, limits, append(slices.Clip(env), "STATSD_PORT="+theirServer.port)...)
			random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
			for range 240 {
				req := randomRequest(random)
				_, err := theirs.call(t, req)
				assert.NoError(t, err, "%v", req)
				_, err = ours.call(t, req)
				assert.NoError(t, err, "%v", req)
			}
			calls := func() float64 {
				sum := 0.0
				for name, count := range theirServer.counts() {
					if strings.HasPrefix(name, "ratelimit_server.ShouldRateLimit.total_requests") {
						sum += count
					}
				}
				return sum
			}
			for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
				if calls() == 240 && maps.Equal(ourServer.counts(), theirServer.counts()) {
					break
				}
			}
			assert.Equal(t, theirServer.counts(), ourServer.counts())
			assert.EqualValues(t, 240, calls())
			assert.Greater(t, len(theirServer.counts()), 100, "enough counters are compared")
		})
	}
}
