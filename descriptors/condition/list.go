package condition

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gaissmai/bart"
)

const (
	// MaxEntries is the maximum number of entries of a list.
	MaxEntries = 250_000

	// maxExamples bounds the entries of a list that become examples.
	maxExamples = 1000

	// maxTextBytes bounds the entries in the text of a condition.
	maxTextBytes = 80
)

// Entry is a value or a network of a list.
type Entry struct {
	Text   string
	Line   int // in its file
	Column int // 0 if unknown
}

// Problem is a mistake in an entry.
type Problem struct {
	Entry
	Reason string
}

// List is the entries of a condition. It is immutable.
type List struct {
	file     string              // empty if the entries are in the limits file
	entries  []string            // sorted, without duplicates
	networks *bart.Lite          // from NewNetworks
	values   map[string]struct{} // from NewValues
}

// ParseFile returns the entries of a file: one a line, without the space around. Empty lines and
// lines that start with a # are left out.
func ParseFile(data []byte) (entries []Entry, problems []Problem) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	line := 0
	for text := range bytes.Lines(data) {
		line++
		text = bytes.TrimSpace(text)
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		entry := Entry{Text: string(text), Line: line}
		if !utf8.Valid(text) {
			problems = append(problems, Problem{entry, "the line is not UTF-8"})
			continue
		}
		entries = append(entries, entry)
	}
	return entries, problems
}

// NewNetworks returns a list of networks such as 10.0.0.0/8, and of addresses, which are networks
// of one address. file names the file of the entries, or is empty. warnings has valid entries
// that are probably mistakes. The list is nil if there are problems.
func NewNetworks(file string, entries []Entry) (list *List, problems, warnings []Problem) {
	l := &List{file: file, networks: new(bart.Lite)}
	problems = check(entries, func(e Entry) error {
		network, err := parseNetwork(e.Text)
		if err != nil {
			return err
		}
		if masked := network.Masked(); masked != network {
			warnings = append(warnings, Problem{e, fmt.Sprintf("%s has bits behind its length; it means %s", network, masked)})
			network = masked
		}
		l.networks.Insert(network)
		l.entries = append(l.entries, networkText(network))
		return nil
	})
	if len(problems) > 0 {
		return nil, problems, nil
	}
	l.sort()
	return l, nil, warnings
}

// NewValues returns a list of values. file names the file of the entries, or is empty. The list
// is nil if there are problems.
func NewValues(file string, entries []Entry) (list *List, problems []Problem) {
	l := &List{file: file, values: make(map[string]struct{}, len(entries))}
	problems = check(entries, func(e Entry) error {
		l.values[e.Text] = struct{}{}
		l.entries = append(l.entries, e.Text)
		return nil
	})
	if len(problems) > 0 {
		return nil, problems
	}
	l.sort()
	return l, nil
}

// check calls add with each entry and returns the problems.
func check(entries []Entry, add func(Entry) error) []Problem {
	if len(entries) > MaxEntries {
		return []Problem{{entries[MaxEntries], fmt.Sprintf("the list has %d entries; maximum is %d", len(entries), MaxEntries)}}
	}
	var problems []Problem
	for _, e := range entries {
		err := error(nil)
		if len(e.Text) > MaxEntryBytes {
			err = fmt.Errorf("got an entry of %d bytes, want at most %d", len(e.Text), MaxEntryBytes)
		} else {
			err = add(e)
		}
		if err != nil {
			problems = append(problems, Problem{e, err.Error()})
		}
	}
	return problems
}

// sort sorts the entries and removes duplicates.
func (l *List) sort() {
	slices.Sort(l.entries)
	l.entries = slices.Clip(slices.Compact(l.entries))
}

// parseNetwork parses a network or an address.
func parseNetwork(text string) (netip.Prefix, error) {
	want := fmt.Errorf("got %s, want a network such as 10.0.0.0/8 or 2001:db8::/32, or an address", strconv.Quote(text))
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, want
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, want
	case network.Addr().Is4In6():
		return netip.Prefix{}, errors.New("got an IPv4 network in IPv6 form, want the IPv4 form such as 10.0.0.0/8")
	}
	return network, nil
}

// networkText returns a network as people write it: an address without the /32.
func networkText(network netip.Prefix) string {
	if network.IsSingleIP() {
		return network.Addr().String()
	}
	return network.String()
}

// Len returns the number of different entries.
func (l *List) Len() int { return len(l.entries) }

// Summary describes a list from a file: "deny.txt has 3 entries, digest 1a2b3c4d". It is empty if
// the entries are in the limits file, where the text of the condition shows them.
func (l *List) Summary() string {
	if l.file == "" {
		return ""
	}
	return fmt.Sprintf("%s has %d entries, digest %s", l.file, len(l.entries), l.digest())
}

// digest returns a short hash of the entries.
func (l *List) digest() string {
	h := sha256.New()
	for _, e := range l.entries {
		fmt.Fprintf(h, "%q\n", e)
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// first returns the first n entries, or all if there are fewer.
func (l *List) first(n int) []string { return slices.Clone(l.entries[:min(n, len(l.entries))]) }

// differences returns the first entries that only one of l and o has.
func (l *List) differences(o *List) []string {
	var all []string
	for _, lists := range [][2]*List{{l, o}, {o, l}} {
		for _, e := range lists[0].entries {
			if _, found := slices.BinarySearch(lists[1].entries, e); !found && len(all) < maxExamples {
				all = append(all, e)
			}
		}
	}
	return all
}

// text returns the entries in brackets: `(a b)`. Long lists end with the number of the other
// entries and a digest of all: `(a b +98 1a2b3c4d)`.
func (l *List) text() string {
	if l.file != "" {
		return "(file " + l.file + ")"
	}
	var b strings.Builder
	for i, e := range l.entries {
		word := quoteEntry(e)
		if i > 0 {
			b.WriteByte(' ')
		}
		if b.Len()+len(word) > maxTextBytes {
			fmt.Fprintf(&b, "+%d %s", len(l.entries)-i, l.digest())
			break
		}
		b.WriteString(word)
	}
	return "(" + b.String() + ")"
}

// quoteEntry adds quotes to an entry that could be mistaken for something else.
func quoteEntry(e string) string {
	if e == "" || strings.HasPrefix(e, "+") || strings.ContainsAny(e, ` ()"`) {
		return strconv.Quote(e)
	}
	return e
}

// shorten returns text, or its start and a digest if it is long.
func shorten(text string) string {
	if len(text) <= maxTextBytes {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return strings.ToValidUTF8(text[:maxTextBytes], "") + "… " + hex.EncodeToString(sum[:4])
}
