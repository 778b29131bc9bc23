package changes

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ErrNothingToRollBack is the error of a rollback without a change before it.
var ErrNothingToRollBack = errors.New("history has no change to roll back")

// PreviousVersion returns the version before the change with that version. A rollback stands for the version that
// it restored, so repeated rollbacks go back step by step.
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

// PlanRollback returns the writes that restore the values after the change with that version, on the condition that
// each field still has the value of the history. A field whose value isEnded needs none.
func PlanRollback(history []Entry, version int64, isEnded func(value string) bool) ([]Write, error) {
	if len(history) == 0 {
		return nil, ErrNothingToRollBack
	}
	newest, oldest := history[0].Version, history[len(history)-1].Version-1
	if version < oldest || version >= newest {
		return nil, fmt.Errorf("version: got %d, want %d to %d", version, oldest, newest-1)
	}
	type values struct{ current, restored *string }
	byField := map[string]*values{}
	for _, e := range history {
		if e.Version <= version {
			break
		}
		for _, w := range e.Fields {
			if byField[w.Field] == nil {
				byField[w.Field] = &values{current: w.NewValue}
			}
			byField[w.Field].restored = w.OldValue
		}
	}
	var writes []Write
	for field, v := range byField {
		hasEnded := v.current != nil && isEnded(*v.current)
		if v.restored != nil && isEnded(*v.restored) {
			v.restored = nil
		}
		if hasEnded && v.restored == nil {
			continue
		}
		if equal(v.current, v.restored) {
			continue
		}
		w := Write{Field: field, Value: v.restored, Condition: Condition{Absent: v.current == nil}}
		if v.current != nil && !hasEnded { // Redis may have lost a value that has ended
			w.Condition.Tags = []string{Tag(*v.current)}
		}
		writes = append(writes, w)
	}
	slices.SortFunc(writes, func(a, b Write) int { return cmp.Compare(a.Field, b.Field) })
	return writes, nil
}

func equal(a, b *string) bool {
	return a == b || a != nil && b != nil && *a == *b
}
