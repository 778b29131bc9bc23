package limit

// Algorithm is a way of counting.
type Algorithm uint8

// The algorithms. The function of each algorithm, such as fixedWindow, has the documentation.
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

// algorithms has one element for each algorithm. Other code asks for traits, such as HasHolds, and compares no
// algorithms.
var algorithms = [...]struct {
	name string // the name in limits files; lua/<name>.lua is the script of the algorithm
	tag  string // the start of Limit.Tag
	take func(s *State, l *Limit, now, n int64, chargeDenied bool) Result
	traits
}{
	FixedWindow:    {"fixed_window", "fw", fixedWindow, traits{defaultChargeDenied: true, resetsAtWindowEnd: true, alignsWindows: true, countsByWindow: true, allowsLeases: true, allowsRegions: true}},
	SlidingWindow:  {"sliding_window", "sw", slidingWindow, traits{allowsRegions: true}},
	SlidingLog:     {"sliding_log", "sl", slidingLog, traits{}},
	TokenBucket:    {"token_bucket", "tb", tokenBucket, traits{usesBurst: true, allowsLeases: true, allowsRegions: true}},
	FirstHitWindow: {"first_hit_window", "fh", firstHitWindow, traits{resetsAtWindowEnd: true}},
	Concurrency:    {"concurrency", "cc", concurrencyWithoutID, traits{hasHolds: true}},
}

// traits are properties of an algorithm. The methods of Algorithm explain each trait.
type traits struct {
	usesBurst, defaultChargeDenied, resetsAtWindowEnd, alignsWindows, countsByWindow, allowsLeases, allowsRegions, hasHolds bool
}

// Algorithms returns all algorithms in the order of their constants.
func Algorithms() []Algorithm {
	list := make([]Algorithm, len(algorithms))
	for i := range list {
		list[i] = Algorithm(i)
	}
	return list
}

// AlgorithmNames returns the names of all algorithms in the order of their constants.
func AlgorithmNames() []string {
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		names[i] = a.name
	}
	return names
}

// ParseAlgorithm returns the algorithm with this name.
func ParseAlgorithm(name string) (Algorithm, bool) { return parse[Algorithm](AlgorithmNames(), name) }

// String returns the name of a in limits files.
func (a Algorithm) String() string { return algorithms[a].name }

// UsesBurst reports whether a limit of this algorithm can have a burst.
func (a Algorithm) UsesBurst() bool { return algorithms[a].usesBurst }

// DefaultChargeDenied reports whether denied hits are charged if a limit in a limits file has no charge_denied.
func (a Algorithm) DefaultChargeDenied() bool { return algorithms[a].defaultChargeDenied }

// ResetsAtWindowEnd reports whether a counter forgets all hits of a window when the window ends. So charges of denied hits
// make no caller wait longer. A peek is allowed as long as the count does not exceed the limit.
func (a Algorithm) ResetsAtWindowEnd() bool { return algorithms[a].resetsAtWindowEnd }

// AlignsWindows reports whether the windows of all keys start at the same times. ResetAfter is then always the time
// until the window ends. Windows of a second or more end at a whole second.
func (a Algorithm) AlignsWindows() bool { return algorithms[a].alignsWindows }

// CountsByWindow reports whether the state is only the count of the current aligned window. The count of a new window
// is 0. A store can then keep one number for each window and decide with Limit.CountHits.
func (a Algorithm) CountsByWindow() bool { return algorithms[a].countsByWindow }

// AllowsLeases reports whether replicas can lease permits of a limit of this algorithm.
func (a Algorithm) AllowsLeases() bool { return algorithms[a].allowsLeases }

// AllowsRegions reports whether regions can share a limit of this algorithm.
func (a Algorithm) AllowsRegions() bool { return algorithms[a].allowsRegions }

// HasHolds reports whether hits take slots until a release, or until their hold expires. A release can come at any time,
// so a hit can be admitted right after a denial.
func (a Algorithm) HasHolds() bool { return algorithms[a].hasHolds }
