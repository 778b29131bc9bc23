// Package override changes the limits of single descriptors, whatever the limits files
// say. It parses overrides, keeps the last good override of each target, and applies
// overrides to a set of limits files.
//
// Terms:
//
//   - override: a change of the limits of one descriptor, or of one value that a
//     descriptor matches;
//   - target: the path to the descriptor, as text;
//   - copy: a descriptor that an override made for a single value.
package override

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// MaxBytes is the maximum size of the value of an override.
const MaxBytes = limitsfile.MaxPatchBytes

// Override is a parsed override. It is immutable.
type Override struct {
	Target descriptors.Target

	*limitsfile.Patch
}

// Parse reads an override. value is the JSON for limitsfile.ParsePatch. The error is
// limitsfile.Problems. Layer reports whether the override fits the limits files.
func Parse(target string, value []byte) (*Override, error) {
	var problems, more limitsfile.Problems
	t, err := descriptors.ParseTarget(target)
	if err != nil {
		problems = append(problems, limitsfile.PatchProblem(target, "", err.Error()))
	}
	patch, err := limitsfile.ParsePatch(target, value)
	if errors.As(err, &more) {
		problems = append(problems, more...)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return &Override{t, patch}, nil
}

// ended reports whether o has ended at now.
func (o *Override) ended(now time.Time) bool { return !o.Expires.IsZero() && !now.Before(o.Expires) }

// Author returns who set the override with this value, and when, as far as value says so.
func Author(value string) (name string, set time.Time) {
	var v struct {
		SetBy string    `json:"set_by"`
		SetAt time.Time `json:"set_at"`
	}
	_ = json.Unmarshal([]byte(value), &v)
	return v.SetBy, v.SetAt
}

// WithAuthor returns value, the JSON of a valid override, with its author and the time at
// which the author sets it. They replace the author and the time that value has.
func WithAuthor(value, author string, set time.Time) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(value), &fields) != nil || len(fields) == 0 {
		return value
	}
	count := len(fields)
	delete(fields, "set_by")
	delete(fields, "set_at")
	if len(fields) < count {
		others, _ := json.Marshal(fields)
		value = string(others)
	}
	return strings.TrimSuffix(strings.TrimSpace(value), "}") + authorSuffix(author, set)
}

// WithoutAuthor returns the value of which WithAuthor has made value.
func WithoutAuthor(value string) string {
	if plain, ok := strings.CutSuffix(value, authorSuffix(Author(value))); ok {
		return plain + "}"
	}
	return value
}

// authorSuffix returns the end of the JSON of an override with an author.
func authorSuffix(author string, set time.Time) string {
	name, _ := json.Marshal(author)
	return fmt.Sprintf(`, "set_by": %s, "set_at": "%s"}`, name, set.UTC().Format(time.RFC3339))
}

// Ended reports whether value is an override that has ended at now.
func Ended(value []byte, now time.Time) bool {
	var v struct {
		ExpiresAt time.Time `json:"expires_at"`
	}
	return json.Unmarshal(value, &v) == nil && !v.ExpiresAt.IsZero() && !now.Before(v.ExpiresAt)
}
