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

// Ended reports whether value is an override that has ended at now.
func Ended(value []byte, now time.Time) bool {
	var v struct {
		ExpiresAt time.Time `json:"expires_at"`
	}
	return json.Unmarshal(value, &v) == nil && !v.ExpiresAt.IsZero() && !now.Before(v.ExpiresAt)
}
