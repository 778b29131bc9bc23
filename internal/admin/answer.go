package admin

import (
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Problems is the answer to a rejected call.
type Problems struct {
	Problems  []string `json:"problems"`
	Endpoints []string `json:"endpoints,omitempty"` // set if the path is unknown
}

// State is the state of an override.
type State string

// The states.
const (
	InForce  State = "in force"
	Rejected State = "rejected" // Problems has the reasons
	Waiting  State = "waiting"  // the override waits for a domain or a descriptor, which Problems names
	Expired  State = "expired"
	Deleted  State = "deleted" // only in the answer to a DELETE
)

// List is an answer with all fields, or with the fields of one kind. The other lists are nil.
type List struct {
	Overrides  []Override `json:"overrides,omitzero"` // sorted by target
	Rules      []Override `json:"rules,omitzero"`
	Switches   []Override `json:"switches,omitzero"`
	ShadowMode []Override `json:"shadow_mode,omitzero"` // at most one
	Problems   []string   `json:"problems,omitempty"`   // why the lists can lack changes: Redis can't be read
}

// Override is an override, a rule or a switch in an answer.
type Override struct {
	Kind   override.Kind `json:"kind"`
	Target string        `json:"target"`

	Override json.RawMessage `json:"override,omitempty"` // the stored value; a JSON string if the value is not JSON or has too many brackets
	ETag     string          `json:"etag,omitempty"`     // the ETag of the stored value, for If-Match
	Version  int64           `json:"version,omitempty"`  // the version of the change; only in the answer to a change

	State        State    `json:"state"`
	Problems     []string `json:"problems,omitempty"`
	AlsoRejected []string `json:"also_rejected,omitempty"` // problems of other overrides that a PUT makes invalid
	DryRun       bool     `json:"dry_run,omitempty"`       // nothing was stored

	Path       string `json:"path,omitempty"`        // the path of the descriptor, such as "shop > tenant=acme"
	BaseLimits string `json:"base_limits,omitempty"` // the limits without the override; in the answer to a DELETE, the limits before the DELETE
	Limits     string `json:"limits,omitempty"`      // the limits in force; if the override is rejected, the limits of its last valid value
	Counters   string `json:"counters,omitempty"`    // kept if Limits and BaseLimits use the same counters, otherwise new

	ExpiresAt string `json:"expires_at,omitempty"` // the end of the override, in UTC (RFC 3339)
	SetBy     string `json:"set_by,omitempty"`     // the name of the caller, if the override was set through this API
	SetAt     string `json:"set_at,omitempty"`     // the time of the change, in UTC (RFC 3339)
	Reason    string `json:"reason,omitempty"`

	OldOverride json.RawMessage `json:"old_override,omitempty"` // the JSON that a change has replaced or deleted
}

// Counter is an answer with the counters of requests.
type Counter struct {
	Target     string  `json:"target"`
	Path       string  `json:"path"`                  // the path of the rule that matches the requests
	Key        string  `json:"key"`                   // the key of the counter
	ShadowMode bool    `json:"shadow_mode,omitempty"` // the rule denies no request
	Limits     []Limit `json:"limits"`                // the limits of the rule, in the same order as in the rule
	Note       string  `json:"note,omitempty"`        // the replicas that a reset did not reach, or a denial that the deny cache still remembers
}

// Reset is the answer to the reset of a counter.
type Reset struct {
	Counter
	LimitsBefore []Limit `json:"before"`    // the limits before the reset
	Published    bool    `json:"published"` // the other replicas know about the reset; otherwise their caches may deny for a while
}

// ResetByPrefix is the answer to a reset by prefix.
type ResetByPrefix struct {
	Prefix          string `json:"prefix"`
	DryRun          bool   `json:"dry_run,omitempty"` // nothing was reset
	Counters        *int   `json:"counters"`          // the number of counters with the prefix; null if the backend can't count them
	UnclearCounters int    `json:"unclear,omitempty"` // the number of counters that may have the prefix, and that were not reset
	Published       bool   `json:"published"`         // the other replicas know about the reset; otherwise their caches may deny for a while
	Note            string `json:"note,omitempty"`
}

// Limit is one limit of a counter. The numbers of an unlimited limit have no meaning.
// Capacity and Spent of a degraded limit are 0, because they are unknown.
type Limit struct {
	Limit        string  `json:"limit"` // such as "100 per minute"
	Name         string  `json:"name,omitempty"`
	Unlimited    bool    `json:"unlimited,omitempty"`
	Tag          string  `json:"tag"`
	Scope        string  `json:"scope"`
	Capacity     int64   `json:"capacity"`
	Spent        int64   `json:"spent"`         // can exceed Capacity
	Remaining    int64   `json:"remaining"`     // at least 0
	ResetSeconds float64 `json:"reset_seconds"` // the time until the whole capacity is free again
	Over         bool    `json:"over"`          // the next hit is over the limit
	Degraded     bool    `json:"degraded"`      // the numbers come from this replica, because the backend is down

	CachedDenial *CachedDenial `json:"cached_denial,omitempty"` // a denial that this replica answers from its memory, without asking Redis
}

// CachedDenial is a denial that one replica remembers.
type CachedDenial struct {
	Source        string    `json:"source"` // always deny_cache
	Since         time.Time `json:"since"`
	EndsInSeconds float64   `json:"ends_in_seconds"` // the time until the replica asks Redis again
}

func overrideAnswer(state *override.State) Override {
	override := Override{
		Kind: state.Kind, Target: state.Target, Override: storedJSON(&state.Value), ETag: changes.Tag(state.Value), State: InForce, Path: state.Path,
		BaseLimits: state.BaseLimits, Limits: state.Limits, Counters: countersWord(state),
	}
	if !state.ExpiresAt.IsZero() {
		override.ExpiresAt = state.ExpiresAt.UTC().Format(time.RFC3339)
	}
	override.setNotes(state.Notes)
	for _, err := range state.ProblemsOfOthers {
		override.AlsoRejected = append(override.AlsoRejected, problemList(err)...)
	}
	switch {
	case state.Problem != nil:
		override.State, override.Problems = Rejected, problemList(state.Problem)
		if state.IsWaiting {
			override.State = Waiting
		}
	case state.IsExpired:
		override.State = Expired
	}
	return override
}

// setNotes sets the author, the reason and the time of a stored value.
func (o *Override) setNotes(notes limitsfile.Notes) {
	o.SetBy, o.Reason = notes.Author, truncate(notes.Reason)
	if !notes.SetAt.IsZero() {
		o.SetAt = notes.SetAt.UTC().Format(time.RFC3339)
	}
}

func countersWord(s *override.State) string {
	switch {
	case s.Limits == "":
		return ""
	case s.KeepsCounters:
		return "kept"
	}
	return "new"
}

func problemList(err error) []string { return strings.Split(err.Error(), "\n") }

// storedJSON returns a stored value without its author as JSON, or nil if there is no value. Other programs can store
// values of any size and content, so storedJSON bounds the size and quotes text that is not JSON. It also quotes JSON with
// more brackets than any override has, because the indentation of deeply nested JSON can take many times its size.
func storedJSON(value *string) json.RawMessage {
	if value == nil {
		return nil
	}
	const maxBrackets = 128
	text := fields.Cut(override.RemoveAuthor(*value), override.MaxBytes)
	brackets := strings.Count(text, "{") + strings.Count(text, "[")
	if brackets <= maxBrackets && json.Valid([]byte(text)) && utf8.ValidString(text) {
		return json.RawMessage(text)
	}
	quotedText, _ := json.Marshal(text) // Marshal of a string returns no error
	return quotedText
}

// truncate cuts text to 1 KiB, for a log line or a message.
func truncate(text string) string { return fields.Cut(text, 1<<10) }
