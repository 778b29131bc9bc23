package admin

import (
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-81f232ab/rls/descriptors"
)

// Problems is the answer to a call that is refused.
type Problems struct {
	Problems  []string `json:"problems"`
	Endpoints []string `json:"endpoints,omitempty"` // where there is nothing at the path
}

// State is what became of an override.
type State string

// The states.
const (
	InForce State = "in force"
	Refused State = "refused" // Problems say why
	Expired State = "expired"
	Deleted State = "deleted" // only in the answer to a DELETE
)

// List is the answer of GET /admin/overrides.
type List struct {
	Overrides []Override `json:"overrides"` // by target
}

// Override is one override in an answer.
type Override struct {
	Target string `json:"target"`

	// Override is the JSON as it is stored; what isn't JSON, or is nested deeper than
	// any override, is a JSON string.
	Override json.RawMessage `json:"override,omitempty"`

	State    State    `json:"state"`
	Problems []string `json:"problems,omitempty"`

	// AlsoRefused, in the answer to a PUT, are the problems of other overrides that fit
	// no more beside it.
	AlsoRefused []string `json:"also_refused,omitempty"`

	// DryRun tells that nothing was stored, and that the rest is what would be.
	DryRun bool `json:"dry_run,omitempty"`

	// Path is the way to the descriptor: `shop > tenant=acme`.
	Path string `json:"path,omitempty"`

	// Was and Is are the limits there without and with the override, in words. Of one
	// that is refused, Is tells the last good value, which stays in force. Of one that
	// is deleted, Was is what its limits were until then.
	Was string `json:"was,omitempty"`
	Is  string `json:"is,omitempty"`

	// ExpiresAt is when it ends, as in RFC 3339 and UTC; empty if never.
	ExpiresAt string `json:"expires_at,omitempty"`

	// Old is what a change has replaced or removed, if anything.
	Old json.RawMessage `json:"old,omitempty"`
}

// Counter is what requests have spent, in an answer.
type Counter struct {
	Target string `json:"target"`
	Path   string `json:"path"` // of the rule that they meet
	Key    string `json:"key"`  // the counter's name

	// ShadowMode tells that the rule denies nobody.
	ShadowMode bool `json:"shadow_mode,omitempty"`

	Limits []Limit `json:"limits"` // of the rule, in its order
}

// Reset is a counter that was reset.
type Reset struct {
	Counter

	// Was is what Limits were before.
	Was []Limit `json:"was"`

	// ToldOtherReplicas is false if they may deny from memory for a while.
	ToldOtherReplicas bool `json:"told_other_replicas"`

	// Note says in words what the reset didn't reach, if anything.
	Note string `json:"note,omitempty"`
}

// Limit is one limit of a counter. Of an unlimited one, the numbers mean nothing; of
// one that is degraded, Capacity and Spent are 0, as they aren't known.
type Limit struct {
	Limit        string  `json:"limit"` // in words
	Name         string  `json:"name,omitempty"`
	Unlimited    bool    `json:"unlimited,omitempty"`
	Tag          string  `json:"tag"`
	Scope        string  `json:"scope"`
	Capacity     int64   `json:"capacity"`
	Spent        int64   `json:"spent"`         // can be more than Capacity
	Remaining    int64   `json:"remaining"`     // never below 0
	ResetSeconds float64 `json:"reset_seconds"` // until what is spent now is forgotten
	Over         bool    `json:"over"`          // one more hit would be denied
	Degraded     bool    `json:"degraded"`      // this replica stands in for a backend that is away
}

// ofState is s in an answer.
func ofState(s *descriptors.OverrideState) Override {
	o := Override{Target: s.Target, Override: raw(s.Value), State: InForce, Path: s.Path, Was: s.Was, Is: s.Is}
	if !s.Expires.IsZero() {
		o.ExpiresAt = s.Expires.UTC().Format(time.RFC3339)
	}
	for _, err := range s.AlsoRefused {
		o.AlsoRefused = append(o.AlsoRefused, problems(err)...)
	}
	switch {
	case s.Problem != nil:
		o.State, o.Problems = Refused, problems(s.Problem)
	case s.Expired:
		o.State = Expired
	}
	return o
}

// problems are what err says, one by one.
func problems(err error) []string {
	var all descriptors.Problems
	if !errors.As(err, &all) {
		return strings.Split(err.Error(), "\n")
	}
	var texts []string
	for _, p := range all {
		texts = append(texts, p.String())
	}
	return texts
}

// raw is the stored text as JSON. What no PUT would have stored can be of any size.
func raw(text string) json.RawMessage {
	if len(text) > descriptors.MaxOverrideBytes {
		text = cutTo(text, descriptors.MaxOverrideBytes)
	}
	if json.Valid([]byte(text)) && utf8.ValidString(text) && !deep(text) {
		return json.RawMessage(text)
	}
	quoted, _ := json.Marshal(text) // a string never fails
	return quoted
}

// deep tells of JSON that is nested deeper than any override, so that indented it could
// become many times as long.
func deep(text string) bool {
	const most = 8
	depth, inString := 0, false
	for i := 0; i < len(text) && depth <= most; i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	return depth > most
}

// cut is text short enough for a log line or a message.
func cut(text string) string { return cutTo(text, 1<<10) }

func cutTo(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
