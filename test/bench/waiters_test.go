package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/client"
)

// waitersEnv is the environment variable that makes this test binary a process whose callers wait
// for permits: the address of the service, the descriptor and the number of callers.
const waitersEnv = "RLS_BENCH_WAITERS"

// callPause is the time between two callers that start to wait, so that their order is clear.
const callPause = 200 * time.Microsecond

// runWaiters acquires a permit with each of many callers. It starts at a time from the standard
// input, and prints the time at which each caller had its permit, in the order of the calls.
func runWaiters() error {
	fields := strings.Fields(os.Getenv(waitersEnv))
	if len(fields) != 3 {
		return fmt.Errorf("%s: got %d fields, want address, descriptor and callers", waitersEnv, len(fields))
	}
	var callers int
	if _, err := fmt.Sscan(fields[2], &callers); err != nil {
		return err
	}
	descriptor, err := client.ParseDescriptor(fields[1])
	if err != nil {
		return err
	}
	waiter, err := client.New(fields[0], client.Options{})
	if err != nil {
		return err
	}
	defer waiter.Close()
	var begin int64
	if _, err := fmt.Scan(&begin); err != nil {
		return err
	}
	time.Sleep(time.Until(time.UnixMicro(begin)))

	times, errs := make([]int64, callers), make([]error, callers)
	var callerGroup sync.WaitGroup
	for i := range callers {
		callerGroup.Go(func() {
			errs[i] = waiter.Acquire(context.Background(), "bench", descriptor)
			times[i] = time.Now().UnixMicro()
		})
		time.Sleep(callPause)
	}
	callerGroup.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(times)
}
