package changes

import "time"

// Replica is the report of a replica.
type Replica struct {
	// Name is unique among the replicas that are running.
	Name string `json:"name"`

	// Version is the version of the last change that the replica knows.
	Version int64 `json:"version"`

	// Limits is the hash of the limits in force.
	Limits string `json:"limits"`

	// BaseLimits is the hash of the limits of the files or of xDS, without changes at run time. Earlier versions of rls
	// don't report it.
	BaseLimits string `json:"base_limits,omitempty"`

	// Problems is the number of problems of limits and overrides.
	Problems int `json:"problems"`

	Build   string    `json:"build,omitempty"`
	Started time.Time `json:"started"`

	// Figures is missing in the first seconds of a replica.
	Figures *ReplicaFigures `json:"figures,omitempty"`

	// TimeSinceReport is the time since the last report. It is measured with the clock of Redis.
	TimeSinceReport time.Duration `json:"-"`
}

// reportTimeout is the time after which a replica without a report counts as lost.
const reportTimeout = 15 * time.Second

// IsLost reports whether the replica has stopped reporting itself.
func (r *Replica) IsLost() bool { return r.TimeSinceReport > reportTimeout }

// ReplicaFigures describes the traffic of a replica. Rates are means of the last five seconds.
type ReplicaFigures struct {
	Calls       float64 `json:"calls_per_second"`
	Denied      float64 `json:"denied_per_second"` // denied calls
	CPU         float64 `json:"cpu"`               // cores in use
	MemoryBytes int64   `json:"memory_bytes"`
	Blips       int64   `json:"blips"` // short times in which the replica decided calls without Redis, since its start
}

// Reports has the last reports of all replicas.
type Reports struct {
	Replicas []Replica // sorted by name
	More     int       // replicas that Replicas leaves out
	ReadAt   time.Time // when the reports were read; zero before the first read

	// Err is the error of the last read, and FailedAt is the time of the first failed read since ReadAt. Err is nil if
	// the last read did not fail.
	Err      error
	FailedAt time.Time
}
