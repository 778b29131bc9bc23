// Package changes describes changes of limits at run time. A change has writes with conditions, an author and a reason.
// The package plans rollbacks, and has a source in memory.
//
// Terms:
//
// - field: the name of an override, a rule or a switch, with its kind;
// - tag: a short hash of the value of a field. The API shows the tag as ETag;
// - change: one or more writes in one atomic step, with a version. The history has the last changes.
package changes

import (
	"crypto/sha1" // for tags, because scripts of Redis have no other hash
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// VersionField is the field that has the version of the last change.
const VersionField = "|version"

// MaxHistory is the number of changes that the history keeps.
const MaxHistory = 500

// MaxLimitsVersions is the number of LimitsVersions that are kept.
const MaxLimitsVersions = 20

// LimitsVersion has the limits of a source, without overrides, at a time.
type LimitsVersion struct {
	Tag      string            `json:"tag"` // equal limits have equal tags
	LoadedAt time.Time         `json:"at"`
	Source   string            `json:"source"`
	Limits   map[string]string `json:"limits"` // texts such as "10 per minute"; the key is the path of the rule
}

// Origin says who makes a change, when and why.
type Origin struct {
	ChangedAt       time.Time `json:"at"`
	Author          string    `json:"by"`
	Address         string    `json:"from,omitempty"` // the address of the caller
	Action          Action    `json:"action"`
	Reason          string    `json:"reason,omitempty"`
	RestoredVersion int64     `json:"restored,omitempty"` // the version that a rollback restored
}

// ErrNotSent says that no connection to the store was open, so the change is certainly not stored.
var ErrNotSent = errors.New("not sent")

// Change is a change to make.
type Change struct {
	Origin

	// Writes have different fields. A change makes all its writes, or none of them.
	Writes []Write
}

// Action is the kind of a change.
type Action string

// The actions.
const (
	Put      Action = "put"
	Delete   Action = "delete"
	Rollback Action = "rollback"
)

// Write sets one field, or deletes it if Value is nil.
type Write struct {
	Field     string
	Value     *string
	Condition Condition
}

// Condition is a condition on the old value of a field. The zero Condition always holds.
type Condition struct {
	// Exists requires that the field has a value. Absent requires that the field has no value.
	Exists, Absent bool

	Tag string // requires that the field has a value with this tag, unless Tag is empty
}

// Holds reports whether the condition holds for the old value of a field. oldValue is nil if the field has no value.
func (c Condition) Holds(oldValue *string) bool {
	if oldValue == nil {
		return !c.Exists && c.Tag == ""
	}
	return !c.Absent && (c.Tag == "" || c.Tag == Tag(*oldValue))
}

const tagLength = 16

// Tag returns the tag of a value.
func Tag(value string) string {
	hash := sha1.Sum([]byte(value))
	return hex.EncodeToString(hash[:])[:tagLength]
}

// Result is the outcome of a change.
type Result struct {
	Version   int64
	OldValues []*string // the old value of the field of each write; nil if the field had no value
}

// ConflictError is the error of a change with a condition that does not hold. The change has written nothing.
type ConflictError struct {
	Field        string
	CurrentValue *string // the value of the field; nil if the field has no value
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("field %q: the value is not the expected one", e.Field)
}

// Entry is a change in the history.
type Entry struct {
	Version int64 `json:"version"`
	Origin
	Fields []FieldWrite `json:"changes"`
}

// FieldWrite is a field that a change has written. A value is nil if the field had or has no value.
type FieldWrite struct {
	Field    string  `json:"field"`
	OldValue *string `json:"old,omitempty"`
	NewValue *string `json:"new,omitempty"`
}

// NewEntry returns the entry of a change that was made.
func NewEntry(c Change, r Result) Entry {
	e := Entry{Version: r.Version, Origin: c.Origin}
	e.ChangedAt = c.ChangedAt.UTC()
	for i, w := range c.Writes {
		e.Fields = append(e.Fields, FieldWrite{w.Field, r.OldValues[i], w.Value})
	}
	return e
}

// ErrNothingToRollBack is the error of a rollback if the history has no change.
var ErrNothingToRollBack = errors.New("history has no change of an override, a rule or a switch to roll back; to undo a change of a limits file, restore the file")

// PreviousVersion returns the version before the change with this version. If the change is a rollback, PreviousVersion
// returns the version before the restored version.
func PreviousVersion(history []Entry, version int64) (int64, error) {
	for {
		i := slices.IndexFunc(history, func(e Entry) bool { return e.Version == version })
		switch {
		case i < 0:
			return 0, ErrNothingToRollBack
		case history[i].Action == Rollback && history[i].RestoredVersion < version:
			version = history[i].RestoredVersion
		case i+1 < len(history):
			return history[i+1].Version, nil
		default:
			return version - 1, nil
		}
	}
}

// PlanRollback returns the writes that restore the values after the change with this version. Each write has the
// condition that the field still has the value of the history. isExpired reports whether a value has expired. A write
// neither restores nor deletes an expired value.
func PlanRollback(history []Entry, version int64, isExpired func(value string) bool) ([]Write, error) {
	if len(history) == 0 {
		return nil, ErrNothingToRollBack
	}
	newestVersion, oldestVersion := history[0].Version, history[len(history)-1].Version-1
	if version < oldestVersion || version >= newestVersion {
		return nil, fmt.Errorf("version: got %d, want %d to %d", version, oldestVersion, newestVersion-1)
	}
	type values struct{ currentValue, restoredValue *string }
	valuesByField := map[string]*values{}
	for _, e := range history {
		if e.Version <= version {
			break
		}
		for _, w := range e.Fields {
			if valuesByField[w.Field] == nil {
				valuesByField[w.Field] = &values{currentValue: w.NewValue}
			}
			valuesByField[w.Field].restoredValue = w.OldValue
		}
	}
	var writes []Write
	for _, field := range slices.Sorted(maps.Keys(valuesByField)) {
		v := valuesByField[field]
		hasExpired := v.currentValue != nil && isExpired(*v.currentValue)
		if v.restoredValue != nil && isExpired(*v.restoredValue) {
			v.restoredValue = nil
		}
		if needsNoWrite := equal(v.currentValue, v.restoredValue) || hasExpired && v.restoredValue == nil; needsNoWrite {
			continue
		}
		w := Write{Field: field, Value: v.restoredValue, Condition: Condition{Absent: v.currentValue == nil}}
		if v.currentValue != nil && !hasExpired { // an expired value may be deleted, so the write has no condition
			w.Condition.Tag = Tag(*v.currentValue)
		}
		writes = append(writes, w)
	}
	return writes, nil
}

func equal(a, b *string) bool {
	return a == b || a != nil && b != nil && *a == *b
}
