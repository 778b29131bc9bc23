package limit

// Algorithm is a way of counting.
type Algorithm uint8

// The algorithms. Each one is documented at its function.
const (
	FixedWindow Algorithm = iota
	SlidingWindow
	SlidingLog
	TokenBucket
	FirstHitWindow
	Concurrency
)

// DefaultAlgorithm is the algorithm of limits without an algorithm.
const DefaultAlgorithm = FixedWindow

// algorithms has one row for each algorithm. Other code asks for traits and does not compare algorithms.
var algorithms = [...]struct {
	name string // in limits files, and of the script lua/<name>.lua
	tag  string // the start of the Tag of the counters
	take func(s *State, l *Limit, now, n int64, chargeDenied bool) Result
	traits
}{
	FixedWindow:    {"fixed_window", "fw", fixedWindow, traits{defaultChargeDenied: true, resetsAtOnce: true, aligned: true, countsWindows: true, leases: true}},
	SlidingWindow:  {"sliding_window", "sw", slidingWindow, traits{}},
	SlidingLog:     {"sliding_log", "sl", slidingLog, traits{}},
	TokenBucket:    {"token_bucket", "tb", tokenBucket, traits{usesBurst: true, leases: true}},
	FirstHitWindow: {"first_hit_window", "fh", firstHitWindow, traits{resetsAtOnce: true}},
	Concurrency:    {"concurrency", "cc", concurrencyWithoutID, traits{holds: true}},
}

// traits are properties of an algorithm, which its methods explain.
type traits struct {
	usesBurst, defaultChargeDenied, resetsAtOnce, aligned, countsWindows, leases, holds bool
}

// Algorithms returns all algorithms in the order of their constants.
func Algorithms() []Algorithm {
	all := make([]Algorithm, len(algorithms))
	for i := range all {
		all[i] = Algorithm(i)
	}
	return all
}

// AlgorithmNames returns the names of all algorithms in the order of their constants.
func AlgorithmNames() []string {
	names := make([]string, len(algorithms))
	for i, row := range algorithms {
		names[i] = row.name
	}
	return names
}

// ParseAlgorithm returns the algorithm of that name.
func ParseAlgorithm(name string) (Algorithm, bool) { return parse[Algorithm](AlgorithmNames(), name) }

// String returns the name in limits files.
func (a Algorithm) String() string { return algorithms[a].name }

// UsesBurst reports whether a limit of this algorithm can have a burst.
func (a Algorithm) UsesBurst() bool { return algorithms[a].usesBurst }

// DefaultChargeDenied reports whether denied hits are charged if the limits file does not say.
func (a Algorithm) DefaultChargeDenied() bool { return algorithms[a].defaultChargeDenied }

// ResetsAtOnce reports whether all hits of a window are forgotten at its end. So charged denied hits make
// nobody wait longer. A peek is allowed as long as the count does not exceed the limit.
func (a Algorithm) ResetsAtOnce() bool { return algorithms[a].resetsAtOnce }

// Aligned reports whether the windows of all keys start at the same times. ResetAfter is then always the end
// of the window. Windows of a second or more end at a whole second.
func (a Algorithm) Aligned() bool { return algorithms[a].aligned }

// CountsWindows reports whether the state is one count for each aligned window, which starts at 0. A store can
// then keep a number for each window and decide with Limit.CountHits.
func (a Algorithm) CountsWindows() bool { return algorithms[a].countsWindows }

// Leases reports whether replicas can lease permits of a limit of this algorithm.
func (a Algorithm) Leases() bool { return algorithms[a].leases }

// HasHolds reports whether hits take slots until they are released or expire. Slots can become free at any
// time, so a denial says nothing about the next hit.
func (a Algorithm) HasHolds() bool { return algorithms[a].holds }
