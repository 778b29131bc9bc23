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
	ListRate       live.Value // the hits per second; in the list most-denied, the denied hits per second
	Text, UsedText string
	Href           string // the address of the page with this key in the form of explain; empty if the key is a hash
	PassesNow      bool   // the key was limited, and its next hit passes
}

// newKeyList returns a list of keys. In the list unmatched-keys, UsedText is the reason why no rule limits the key. In the
// list callers, UsedText is the rate of denied calls.
func newKeyList(id, caption, keyName, rateName, usedName string, mode live.KeyMode, keys []live.Key) keyList {
	list := keyList{id, caption, keyName, rateName, usedName, mode, nil}
	for _, key := range keys {
		row := newKeyRow(mode, key)
		switch id {
		case "callers":
			row.Text, row.Href, row.UsedText = key.Key, "", FormatRate(key.DeniedRate)
		case "most-denied":
			row.ListRate = key.DeniedRate
		case "unmatched-keys":
			row.UsedText = key.Limit
		}
		list.Rows = append(list.Rows, row)
	}
	return list
}

func newKeyRow(mode live.KeyMode, key live.Key) keyRow {
	row := keyRow{Key: key, ListRate: key.Rate, Text: key.Key, UsedText: "–"}
	if mode == live.KeysOn {
		domain, entriesText, _ := strings.Cut(key.Key, "|")
		parts := strings.Split(entriesText, "|")
		row.Href = explainHref(unescape(domain), descriptorOf(parts))
		for i, part := range parts {
			parts[i] = readableText(part)
		}
		row.Text = strings.Join(parts, ", ")
	}
	if key.Spent != nil && key.Capacity != nil {
		row.UsedText = live.Thousands(*key.Spent) + " of " + live.Thousands(*key.Capacity)
		if key.IsShare {
			row.UsedText += " here"
		}
	}
	if key.Shadow {
		row.UsedText += ", shadow"
	}
	return row
}

const maxLimitedKeys = 8

type limitedKeys struct {
	Note string
	Rows []keyRow
}

// newLimitedKeys returns the table of the keys that are limited now. The most denied key comes first.
func newLimitedKeys(snapshot *live.Snapshot) limitedKeys {
	table := limitedKeys{Note: "No key is limited"}
	switch {
	case snapshot.State.ShadowMode:
		table.Note = "No key: the whole service is in shadow mode"
		return table
	case snapshot.Keys.Mode == live.KeysOff:
		table.Note = "Keys are off. The table of rules begins with the rules that deny most"
		return table
	}
	for _, k := range snapshot.Keys.Denied {
		if k.LimitedSince != nil {
			row := newKeyRow(snapshot.Keys.Mode, k)
			row.PassesNow = k.PassesAt != nil && !k.PassesAt.After(snapshot.Time)
			table.Rows = append(table.Rows, row)
		}
	}
	switch n := len(table.Rows); {
	case n > maxLimitedKeys:
		table.Note, table.Rows = "The most denied keys. Most denied, below, has more", table.Rows[:maxLimitedKeys]
	case n > 0:
		table.Note = live.Count(n, "key")
	}
	return table
}

// keysNote returns the reasons why the lists of keys are not complete.
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

// readableText returns the text of a part of a key. If the text has characters that are invisible or change the
// direction of other characters, it returns part, in which %XX stands for each such character.
func readableText(part string) string {
	const zeroWidthJoiner = '\u200d' // joins several emojis to one emoji, so it does no harm
	isHidden := func(r rune) bool {
		return r != zeroWidthJoiner && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp)
	}
	text, err := url.PathUnescape(part)
	if err != nil || !utf8.ValidString(text) || strings.ContainsFunc(text, isHidden) {
		return part
	}
	return text
}

// descriptorOf returns the text of a descriptor for the form of explain. parts are the entries in the name of a counter.
func descriptorOf(parts []string) string {
	entries := make([]*ratelimitv3.RateLimitDescriptor_Entry, len(parts))
	for i, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		entries[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: unescape(key), Value: unescape(value)}
	}
	return entrytext.Format(entries)
}

// unescape replaces each %XX in a part of the name of a counter. It returns an invalid part unchanged.
func unescape(part string) string {
	text, err := url.PathUnescape(part)
	if err != nil {
		return part
	}
	return text
}

// explainHref returns the address of the page with these values in the form of explain.
func explainHref(domain, descriptor string) string {
	return "/?" + url.Values{"domain": {domain}, "descriptor": {descriptor}}.Encode() + "#explain"
}

// escapeEntry escapes an entry for the form of explain, and replaces each wildcard by the text "example".
var escapeEntry = strings.NewReplacer(`\`, `\\`, ",", `\,`, "*", "example")

// exampleDescriptor returns a descriptor that the rule with this path matches, for the form of explain. If the rule
// matches any value, the value is "example".
func exampleDescriptor(path string) string {
	parts := strings.Split(path, pathSeparator)[1:]
	for i, part := range parts {
		part = escapeEntry.Replace(part)
		if !strings.Contains(part, "=") {
			part += "=example"
		}
		parts[i] = part
	}
	return strings.Join(parts, ",")
}
