package timeline

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLastEventsAreKeptNewestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := New(3)
		for _, text := range []string{"a", "b", "c", "d", "e"} {
			events.Add(Event{Kind: Reload, Text: text})
			time.Sleep(time.Second)
		}
		got := events.Events()
		require.Len(t, got, 3)
		for i, text := range []string{"e", "d", "c"} {
			e := got[i]
			assert.Equal(t, Event{ID: uint64(5 - i), Time: time.Now().Add(-time.Duration(i+1) * time.Second), Kind: Reload, Text: text}, Event{ID: e.ID, Time: e.Time, Kind: e.Kind, Text: e.Text, Attrs: e.Attrs})
		}
	})
}

func TestLongEventIsCut(t *testing.T) {
	events := New(1)
	attrs := make([]Attr, 1000)
	attrs[0] = Attr{"problem", "x" + strings.Repeat("ü", 1<<20)}
	events.Add(Event{Text: strings.Repeat("y", 1<<20), Attrs: attrs})
	e := events.Events()[0]
	assert.Len(t, e.Attrs, maxAttrs)
	assert.Len(t, e.Text, maxTextBytes+len("…"))
	assert.True(t, utf8.ValidString(e.Attrs[0].Value))
	assert.LessOrEqual(t, len(e.Attrs[0].Value), maxTextBytes+len("…"))
	assert.Len(t, attrs[0].Value, 2<<20+1, "the caller's attributes stay as they are")
}

func TestChangeOfResultDoesNotChangeTimeline(t *testing.T) {
	events := New(2)
	events.Add(Event{Text: "a"})
	events.Events()[0].Text = "b"
	assert.Equal(t, "a", events.Events()[0].Text)
}

func TestRepeatedEventsAreOneEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := New(8)
		start := time.Now().UTC().Format(time.RFC3339)
		events.Add(Event{Kind: Reload, Text: "limits in force"})
		for range 1000 {
			events.Add(Event{Kind: Breaker, Text: "outage started", Repeats: true, Attrs: []Attr{{"kind", "timeout"}}})
			time.Sleep(time.Second)
			events.Add(Event{Kind: Breaker, Text: "outage ended", Repeats: true})
		}
		got := events.Events()
		require.Len(t, got, 3)
		assert.Equal(t, []string{"outage ended", "outage started", "limits in force"}, []string{got[0].Text, got[1].Text, got[2].Text})
		assert.Equal(t, []Attr{{"times", "1000"}, {"first", start}, {"kind", "timeout"}}, got[1].Attrs)
		assert.Equal(t, time.Now(), got[0].Time, "the time of the last repetition")

		time.Sleep(mergeTime)
		events.Add(Event{Kind: Breaker, Text: "outage started", Repeats: true})
		got = events.Events()
		assert.Empty(t, got[0].Attrs, "an outage after a time without outages is a new event")
	})
}

func TestRepeatedEventsNeverTakeThePlaceOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := New(8)
		for _, text := range []string{"a", "b", "c", "d", "e", "f"} {
			events.Add(Event{Kind: Reload, Text: text})
		}
		for range 20 {
			events.Add(Event{Kind: Breaker, Text: "outage started", Repeats: true})
			time.Sleep(mergeTime)
		}
		texts := ""
		for _, e := range events.Events() {
			texts += e.Text[:1]
		}
		assert.Equal(t, "oofedcba", texts)
	})
}
