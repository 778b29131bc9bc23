// Package curves holds the figures that `make bench-curves` measures: their types, and the file
// that keeps them. It measures nothing itself.
package curves

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// Names of the servers that every run has. A peer has the name that its user gives.
const (
	Nothing   = "does nothing"
	Local     = "rls, local"
	Redis     = "rls, Redis"
	Lease     = "rls, leases"
	Incumbent = "incumbent"
)

// Load is the load on a server. Callers keep InFlight calls in flight. If Rate is set, a call
// starts each 1/Rate seconds instead, whether or not others are answered (an open loop).
type Load struct {
	InFlight    int    `json:"in_flight,omitempty"`
	Rate        int    `json:"rate,omitempty"` // calls in a second
	Descriptors int    `json:"descriptors"`
	Keys        int    `json:"keys"`
	Domain      string `json:"domain,omitempty"` // empty means bench
}

// DefaultKeys is the number of keys that the name of a load does not mention.
const DefaultKeys = 10_000

// Name returns the load in words, for tables.
func (l Load) Name() string {
	name := fmt.Sprintf("%d in flight", l.InFlight)
	if l.Rate > 0 {
		name = fmt.Sprintf("%d calls/s, open loop", l.Rate)
	}
	if l.Descriptors == 1 {
		name += ", 1 descriptor"
	} else {
		name += fmt.Sprintf(", %d descriptors", l.Descriptors)
	}
	switch l.Keys {
	case DefaultKeys:
	case 1:
		name += ", 1 key"
	default:
		name += fmt.Sprintf(", %d keys", l.Keys)
	}
	if l.Domain != "" {
		name += ", " + l.Domain
	}
	return name
}

// Spread is the median of a figure over the rounds, and its lowest and highest value.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// SpreadOf returns the spread of values. There must be at least one.
func SpreadOf(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	return Spread{Median: sorted[len(sorted)/2], Low: sorted[0], High: sorted[len(sorted)-1]}
}

// Figure names a figure of a cell. Times are in microseconds, and costs are for one call.
type Figure string

// The figures of a cell. A cell lacks the figures that its server can't have, such as the CPU
// time of Redis for a server that counts in the process.
const (
	ServerCPU     Figure = "server_cpu"
	ClientCPU     Figure = "client_cpu"
	RedisCPU      Figure = "redis_cpu"
	RedisCommands Figure = "redis_commands" // including the commands of scripts
	RedisReads    Figure = "redis_reads"    // reads of Redis from a connection; nearly always a trip
	P50           Figure = "p50"
	P99           Figure = "p99"
	P999          Figure = "p999"
	PerSecond     Figure = "per_second"
)

// Cell is the result of one load on one server.
type Cell struct {
	Server  string            `json:"server"`
	Load    Load              `json:"load"`
	Figures map[Figure]Spread `json:"figures"`
}

// Saturated reports whether the server answered fewer calls than an open loop started.
func (c Cell) Saturated() bool {
	return c.Load.Rate > 0 && c.Figures[PerSecond].Median < 0.93*float64(c.Load.Rate)
}

// KeyMemory is the memory that a key takes, in bytes.
type KeyMemory struct {
	Server string  `json:"server"`
	Keys   int     `json:"keys"`
	Bytes  float64 `json:"server_bytes"`
	Redis  float64 `json:"redis_bytes,omitempty"`
}

// Pipeline is the CPU time that Redis takes for a pipeline of INCRBY.
type Pipeline struct {
	Connections int    `json:"connections"`
	Commands    int    `json:"commands"` // in a pipeline
	Micros      Spread `json:"micros"`   // for a pipeline
}

// Exactness says how many hits three replicas of a server admitted, relative to the limit.
type Exactness struct {
	Server    string `json:"server"`
	Algorithm string `json:"algorithm"`
	// Span is the most that a second admitted, wherever it begins, under bursts around the end
	// of a window. 1 is the limit.
	Span Spread `json:"span"`
	// Steady is the share of the limit that was admitted under a steady demand of three limits.
	Steady Spread `json:"steady"`
}

// Run is the whole of a measurement.
type Run struct {
	Measured  time.Time   `json:"measured"`
	Cores     int         `json:"cores"`
	Go        string      `json:"go"`
	RedisIs   string      `json:"redis"` // version
	Rounds    int         `json:"rounds"`
	Seconds   float64     `json:"seconds"` // of a load in a round
	Cells     []Cell      `json:"cells"`
	Memory    []KeyMemory `json:"memory"`
	Pipelines []Pipeline  `json:"pipelines"`
	Exactness []Exactness `json:"exactness"`
}

// Cell returns the cell of a load on a server, and whether it was measured.
func (r *Run) Cell(server string, l Load) (Cell, bool) {
	i := slices.IndexFunc(r.Cells, func(c Cell) bool { return c.Server == server && c.Load == l })
	if i < 0 {
		return Cell{}, false
	}
	return r.Cells[i], true
}

// Servers returns the names of the servers, in the order of the first load.
func (r *Run) Servers() (names []string) {
	for _, c := range r.Cells {
		if !slices.Contains(names, c.Server) {
			names = append(names, c.Server)
		}
	}
	return names
}

// Loads returns the loads, in the order of the run.
func (r *Run) Loads() (loads []Load) {
	for _, c := range r.Cells {
		if !slices.Contains(loads, c.Load) {
			loads = append(loads, c.Load)
		}
	}
	return loads
}

// Read returns the run that the file at path keeps.
func Read(path string) (*Run, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := new(Run)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Write puts the run into the file at path.
func (r *Run) Write(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
