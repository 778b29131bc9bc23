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
	Problems   []string  `json:"problems"`
	Current    *Override `json:"current,omitempty"`     // the value in force
	LastChange *Change   `json:"last_change,omitempty"` // wrote or deleted the value, if the history still has it
}

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
	by := func(author, action, at, reason string) string {
		text := author + " " + action + " at " + at
		if reason != "" {
			text += fmt.Sprintf(", reason %q", reason)
		}
		return text
	}
	text := "it has no value, or its end has passed"
	switch last := body.LastChange; {
	case conflict.Current != nil:
		state := h.options.Overrides.DryRun(conflict.Field, *conflict.Current)
		current := overrideAnswer(&state)
		body.Current = &current
		text = "it exists, and its author is unknown"
		if current.SetBy != "" {
			text = by(current.SetBy, "set it", current.SetAt, current.Reason)
		}
		if current.Limits != "" {
			text += "; limits now: " + current.Limits
		}
	case last != nil && last.Action != changes.Put:
		text = by(last.Author, "deleted it", last.ChangedAt.UTC().Format(time.RFC3339), last.Reason)
	}
	body.Problems = []string{name + ": " + text + ". Nothing was changed; read it again before you repeat the call"}
	return answer{code: http.StatusPreconditionFailed, body: body}
}
