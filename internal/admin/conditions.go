package admin

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Conflict is the answer to a change whose If-Match or If-None-Match does not hold.
type Conflict struct {
	Problems []string `json:"problems"`

	// Current is the value in force, or nil if there is none.
	Current *Override `json:"current,omitempty"`

	// LastChange is the change that wrote the current value or deleted it, if the history still
	// has it.
	LastChange *Change `json:"last_change,omitempty"`
}

// readCondition reads the headers If-Match and If-None-Match.
func readCondition(h http.Header) (c changes.Condition, err error) {
	if c.Tags, c.Exists, err = readTags(h, "If-Match"); err != nil {
		return c, err
	}
	c.OtherTags, c.Absent, err = readTags(h, "If-None-Match")
	return c, err
}

// readTags reads the ETags of a header. isAny reports that the header is *. tags is nil then, and without
// the header.
func readTags(h http.Header, name string) (tags []string, isAny bool, err error) {
	values := h.Values(name)
	if len(values) == 0 {
		return nil, false, nil
	}
	const maxTags = 20
	text := strings.TrimSpace(strings.Join(values, ","))
	if text == "*" {
		return nil, true, nil
	}
	parts := strings.Split(text, ",")
	if len(parts) > maxTags {
		return nil, false, fmt.Errorf("%s: got %d ETags, want at most %d", name, len(parts), maxTags)
	}
	for _, part := range parts {
		part = strings.TrimSpace(part)
		weak := strings.TrimPrefix(part, "W/")
		tag, isQuoted := strings.CutPrefix(weak, `"`)
		tag, isClosed := strings.CutSuffix(tag, `"`)
		if !isQuoted || !isClosed || strings.Contains(tag, `"`) || strings.Contains(tag, " ") {
			return nil, false, fmt.Errorf(`%s: got %s, want * or an ETag in quotes, such as "%s"`, name, truncate(part), changes.Tag(""))
		}
		if name == "If-Match" && weak != part {
			tag = "weak" // a weak ETag matches nothing
		}
		tags = append(tags, tag)
	}
	return tags, false, nil
}

// answerConflict answers 412 with the current value and the last change.
func (h *handler) answerConflict(c *call, conflict *changes.ConflictError) answer {
	kind, target := override.SplitField(conflict.Field)
	name := strings.TrimSpace(string(kind) + " " + target)
	var body Conflict
	if history, err := h.history(c); err == nil {
		if last := changes.LastChangeOf(history, conflict.Field); last != nil {
			change := newChange(last, c.caller.mayUseField)
			body.LastChange = &change
		}
	}
	text := ""
	switch {
	case conflict.Current == nil && body.LastChange != nil && body.LastChange.Action != changes.Put:
		text = fmt.Sprintf("%s: %s", name, body.LastChange.describe("deleted it"))
	case conflict.Current == nil:
		text = name + ": it has no value, or its end has passed"
	default:
		state := h.options.Overrides.DryRun(conflict.Field, *conflict.Current)
		current := overrideAnswer(&state)
		body.Current = &current
		text = name + ": it exists, and its author is unknown"
		if current.SetBy != "" {
			text = fmt.Sprintf("%s: %s set it at %s", name, current.SetBy, current.SetAt)
		}
		if current.Reason != "" {
			text += fmt.Sprintf(", reason %q", current.Reason)
		}
		if current.Limits != "" {
			text += "; limits now: " + current.Limits
		}
	}
	body.Problems = []string{text + ". Nothing was changed; read it again before you repeat the call"}
	return answer{code: http.StatusPreconditionFailed, body: body}
}

// describe describes a change in words: "alice deleted it at 2030-01-31T12:00:00Z".
func (c *Change) describe(action string) string {
	text := fmt.Sprintf("%s %s at %s", c.Author, action, c.ChangedAt.UTC().Format(time.RFC3339))
	if c.Reason != "" {
		text += fmt.Sprintf(", reason %q", c.Reason)
	}
	return text
}
