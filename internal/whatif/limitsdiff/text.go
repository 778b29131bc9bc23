package limitsdiff

import (
	"bufio"
	"fmt"
	"io"
)

// WriteText writes r for people.
func (r *Report) WriteText(out io.Writer) error {
	w := bufio.NewWriter(out)
	count := map[Kind]int{}
	for i := range r.Changes {
		c := &r.Changes[i]
		count[c.Kind]++
		fmt.Fprintf(w, "%-7s  %s: %s\n", c.Kind, c.Requests, c.words())
		if c.Old != nil {
			fmt.Fprintf(w, "    before: %s (%s)\n", c.Old.Limits, c.Old.Place)
		}
		if c.New != nil {
			fmt.Fprintf(w, "    now:    %s (%s)\n", c.New.Limits, c.New.Place)
		}
		for _, reason := range c.Reasons {
			fmt.Fprintf(w, "    - %s\n", reason)
		}
		switch c.Counters {
		case "kept":
			fmt.Fprintln(w, "    counters: kept")
		case "new":
			fmt.Fprintln(w, "    counters: new; keys start with nothing spent in the new counters")
		}
	}
	if len(r.Changes) == 0 {
		fmt.Fprintln(w, "no change: the same requests pass")
	} else {
		changes := "changes"
		if len(r.Changes) == 1 {
			changes = "change"
		}
		fmt.Fprintf(w, "%d %s: %d tighter, %d looser, %d mixed, %d without effect on requests\n",
			len(r.Changes), changes, count[Tighter], count[Looser], count[Mixed], count[Same])
	}
	if r.Incomplete {
		fmt.Fprintf(w, "the limits are too large: only %d requests are compared\n", maxRequests)
	}
	return w.Flush()
}

// words returns what happens to the requests.
func (c *Change) words() string {
	switch c.Event {
	case Added:
		if c.New.Path != c.Requests {
			return "limited by " + c.New.Path + " now; had no rule before"
		}
		return "new rule; these requests had no rule before"
	case Removed:
		if c.Old.Path != c.Requests {
			return "has no rule now; was limited by " + c.Old.Path
		}
		return "rule gone; these requests have no rule now"
	case Moved:
		return fmt.Sprintf("requests meet another rule: %s before, %s now", c.Old.Path, c.New.Path)
	}
	return "changed"
}
