package limitsfile

import (
	"strconv"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Notes say who made a change of run time, why, and when it ends.
type Notes struct {
	// Expires is the time at which the change ends. The zero Time means never.
	Expires time.Time

	// Author set the change at the time SetAt. Both are zero if unknown.
	Author string
	SetAt  time.Time

	Reason string
}

// String returns the notes in words: ` by alice until 2030-01-31T12:00:00Z, reason "spike"`. It
// returns an empty text for no notes.
func (n Notes) String() string {
	text := ""
	if n.Author != "" {
		text += " by " + fields.Printable(n.Author)
	}
	if !n.Expires.IsZero() {
		text += " until " + n.Expires.UTC().Format(time.RFC3339)
	}
	if n.Reason != "" {
		text += ", reason " + strconv.Quote(n.Reason)
	}
	return text
}

// MaxReasonBytes is the maximum size of a reason.
const MaxReasonBytes = 500

// noteFields are the fields of Notes. They change no limit.
var noteFields = []string{"expires_at", "reason", "set_by", "set_at"}

// notes returns the notes that o has.
func (d *document) notes(o *object) Notes {
	n := Notes{
		Expires: d.time(o.field("expires_at")), SetAt: d.time(o.field("set_at")),
		Author: o.field("set_by").Text, Reason: o.field("reason").Text,
	}
	if len(n.Reason) > MaxReasonBytes {
		d.errorf(o.field("reason").node, nil, "reason: got %d bytes, want at most %d", len(n.Reason), MaxReasonBytes)
	}
	return n
}

// time returns the time in v, or the zero Time.
func (d *document) time(v value) time.Time {
	if !v.valid() {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, v.Text)
	if err != nil {
		d.errorf(v.node, nil, "%s: got %s, want a time such as 2030-01-31T12:00:00Z", v.row.Name, fields.Display(v.node))
	}
	return t
}

// parseValue reads a value of run time: a JSON object with notes and other fields of level l. file and example
// are shown in problems. check gets the object, and reports more mistakes. The error is Problems.
func parseValue(file string, l level, value []byte, example string, check func(d *document, o *object)) (n Notes, err error) {
	d := newDocument(file, newShared(Options{}))
	if root := d.json(value, example); root != nil {
		o := d.object(l, nil, root)
		n = d.notes(o)
		check(d, o)
	}
	if all := d.problemsAt(""); len(all) > 0 {
		return n, all
	}
	return n, nil
}

// ParseSwitch reads the notes of a switch from a JSON object. name is shown in problems. The
// error is Problems.
func ParseSwitch(name string, value []byte) (Notes, error) {
	return parseValue(name, switchLevel, value, `{"reason": "incident", "expires_at": "2030-01-31T12:00:00Z"}`, func(*document, *object) {})
}

// ParseShadowMode reads the switch that changes SHADOW_MODE: a JSON object with notes and the
// field shadow_mode, which it must have. name is shown in problems. The error is Problems.
func ParseShadowMode(name string, value []byte) (on bool, n Notes, err error) {
	n, err = parseValue(name, shadowModeLevel, value, `{"shadow_mode": true}`, func(d *document, o *object) {
		mode := o.field("shadow_mode")
		if !mode.given() {
			d.errorf(o.node, nil, "shadow_mode is missing; want true or false")
		}
		on = mode.Flag
	})
	return on, n, err
}
