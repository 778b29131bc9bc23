//go:build attacks

package attacks

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/seed-81f232ab/rls/internal/testkit/xdstest"
)

// rules returns a response with n rules, each with a key, a value and a limit.
func rules(n int) *confv3.RateLimitConfig {
	response := xdstest.Config("d", 1)
	for i := range n - 1 {
		response.Descriptors = append(response.Descriptors, &confv3.RateLimitDescriptor{
			Key: "path", Value: fmt.Sprintf("/api/v1/items/%06d/%051d", i, i),
			RateLimit: &confv3.RateLimitPolicy{Unit: confv3.RateLimitUnit_MINUTE, RequestsPerUnit: 10},
		})
	}
	return response
}

// emptyDescriptors returns a response with n descriptors that have no field. All are one in memory.
func emptyDescriptors(n int) *confv3.RateLimitConfig {
	response := xdstest.Config("d", 1)
	response.Descriptors = append(response.Descriptors, slices.Repeat([]*confv3.RateLimitDescriptor{{}}, n)...)
	return response
}

func TestLargestXDSResponsesTakeBoundedMemory(t *testing.T) {
	program := build(t)
	for _, test := range []struct {
		name     string
		response *confv3.RateLimitConfig
		want     string // in the reason of a rejection; empty if the limits come into force
	}{
		{"159,000 rules", rules(159_000), ""},
		{"empty descriptors", emptyDescriptors(8_000_000), "more than 320000 descriptors and limits"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := xdstest.Serve(t, "127.0.0.1:0")
			server.Set("1", test.response)
			resetPeak(t)
			// With one core, the garbage collector does no extra work on an idle core. That work depends on the machine.
			service := startService(t, program, "GOMAXPROCS=1", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+server.Addr, "CONFIG_GRPC_XDS_NODE_ID="+xdstest.Node)
			size := float64(proto.Size(test.response)) / (1 << 20)
			server.Request()
			answer := server.Request()
			result := "in force"
			if test.want != "" {
				result = "rejected: " + test.want
			}
			assert.Contains(t, answer.GetErrorDetail().GetMessage(), test.want)
			assert.Equal(t, test.want == "", answer.GetErrorDetail() == nil, answer.GetErrorDetail())
			fileTable.rows = append(fileTable.rows, fmt.Sprintf("| xDS response: %s in %.1f MiB | %d | %.1f | %s |", test.name, size, service.peakMemory()>>20, service.cpuTime().Seconds(), result))
			assert.LessOrEqual(t, service.peakMemory(), int64(maxFileMemory))
			assertBoundedTime(t, service.cpuTime(), maxResponseTimesLibrary)
		})
	}
}

// cpuTime returns the CPU time that the service has used, in hundredths of a second.
func (s *service) cpuTime() (sum time.Duration) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	fields := strings.Fields(string(data))
	for _, text := range fields[13:15] { // user and system
		ticks, err := strconv.Atoi(text)
		require.NoError(s.t, err)
		sum += time.Duration(ticks) * time.Second / 100
	}
	return sum
}
