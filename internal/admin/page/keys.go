package page

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/observe/live"
)

type keyList struct {
	ID, Caption                 string
	KeyName, RateName, UsedName string // headings
	Mode                        live.KeyMode
	Rows                        []keyRow
}

type keyRow struct {
	live.Key
	ListRate   live.Value // hits or denied hits, as the list has them
	Text, Used string
	Href       string // address of explain with this key; empty if the key is hashed
	PassesNow  bool   // the wait of a limited key is over
}

// newKeyList returns a list of keys. The list most-denied has their rates of denied hits. The list unmatched-keys has
// the reasons why no rule limits them, and the list callers has the rates of denied calls.
func newKeyList(id, caption, keyName, rateName, usedName string, mode live.KeyMode, keys []live.Key) keyList {
	l := keyList{id, caption, keyName, rateName, usedName, mode, nil}
	for _, k := range keys {
		row := newKeyRow(mode, k)
		switch id {
		case "callers":
			row.Text, row.Href, row.Used = k.Key, "", FormatRate(k.DeniedRate)
		case "most-denied":
			row.ListRate = k.DeniedRate
		case "unmatched-keys":
			row.Used = k.Limit
		}
		l.Rows = append(l.Rows, row)
	}
	return l
}

func newKeyRow(mode live.KeyMode, k live.Key) keyRow {
	row := keyRow{Key: k, ListRate: k.Rate, Text: k.Key, Used: "–"}
	if mode == live.KeysOn {
		domain, rest, _ := strings.Cut(k.Key, "|")
		parts := strings.Split(rest, "|")
		row.Href = explainHref(unescape(domain), descriptorOf(parts))
		for i, part := range parts {
			parts[i] = readable(part)
		}
		row.Text = strings.Join(parts, ", ")
	}
	if k.Spent != nil && k.Capacity != nil {
		row.Used = live.Thousands(*k.Spent) + " of " + live.Thousands(*k.Capacity)
	}
	return row
}

// maxLimited is the maximum number of rows under "Limited now".
const maxLimited = 8

// limitedTable has the keys under "Limited now".
type limitedTable struct {
	Note string
	Rows []keyRow
}

// newLimitedTable returns the keys that are limited now, the most denied first.
func newLimitedTable(s *live.Snapshot) limitedTable {
	t := limitedTable{Note: "No key is limited"}
	switch {
	case s.State.ShadowMode:
		t.Note = "No key: the whole service is in shadow mode"
		return t
	case s.Keys.Mode == live.KeysOff:
		t.Note = "Keys are off. The table of rules begins with the rules that deny most"
		return t
	}
	for _, k := range s.Keys.Denied {
		if k.LimitedSince != nil {
			row := newKeyRow(s.Keys.Mode, k)
			row.PassesNow = k.PassesAt != nil && !k.PassesAt.After(s.Time)
			t.Rows = append(t.Rows, row)
		}
	}
	switch n := len(t.Rows); {
	case n > maxLimited:
		t.Note, t.Rows = "The most denied keys. Most denied, below, has more", t.Rows[:maxLimited]
	case n > 0:
		t.Note = live.Count(n, "key")
	}
	return t
}

// keysNote says what the lists of keys leave out.
func keysNote(k live.TopKeys) string {
	var notes []string
	switch {
	case k.Mode == live.KeysOff:
		notes = append(notes, "Off")
	case k.Mode == live.KeysHashed && !k.Hidden:
		notes = append(notes, "Hashes instead of values, by the settings")
	}
	if k.Mode != live.KeysOff && k.SampledShare < 1 {
		notes = append(notes, "From "+FormatShare(k.SampledShare)+" of the decisions")
	}
	return strings.Join(notes, " · ")
}

// readable returns the text of a part of a key. If the text has invisible characters or
// characters that change the direction of others, the result is part, which has %XX instead.
func readable(part string) string {
	const zeroWidthJoiner = '\u200d' // joins emojis to one
	isHidden := func(r rune) bool {
		return r != zeroWidthJoiner && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp)
	}
	text, err := url.PathUnescape(part)
	if err != nil || !utf8.ValidString(text) || strings.ContainsFunc(text, isHidden) {
		return part
	}
	return text
}

// descriptorOf returns the descriptor with these parts of the name of a counter, as the form of explain takes it.
func descriptorOf(parts []string) string {
	entries := make([]*ratelimitv3.RateLimitDescriptor_Entry, len(parts))
	for i, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		entries[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: unescape(key), Value: unescape(value)}
	}
	return entrytext.Format(entries)
}

// unescape returns the text of a part of the name of a counter.
func unescape(part string) string {
	text, err := url.PathUnescape(part)
	if err != nil {
		return part
	}
	return text
}

// explainHref returns the address of the page with the form of explain filled in.
func explainHref(domain, descriptor string) string {
	return "/?" + url.Values{"domain": {domain}, "descriptor": {descriptor}}.Encode() + "#explain"
}

// escapeEntry escapes an entry for the form of explain and makes up text for a wildcard.
var escapeEntry = strings.NewReplacer(`\`, `\\`, ",", `\,`, "*", "example")

// exampleDescriptor returns a descriptor that the rule of path matches, for the form of
// explain: a value is made up where the rule takes any.
func exampleDescriptor(path string) string {
	parts := strings.Split(path, separator)[1:]
	for i, part := range parts {
		part = escapeEntry.Replace(part)
		if !strings.Contains(part, "=") {
			part += "=example"
		}
		parts[i] = part
	}
	return strings.Join(parts, ",")
}
