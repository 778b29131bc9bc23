package quota

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// division is a limit that one replica divides. It admits 100 requests a second, and a burst of 200. A tenth of the rate is
// free for newcomers, and a twentieth of both is the reserve.
type division struct {
	limit          Limit
	state          State
	memory         []Holder // the holders that the replica remembers
	missesAnswer   bool     // the replica does not get the answer of the store
	isOtherReplica bool     // another replica, without own holders, calls Apply
}

func newDivision() *division {
	return &division{limit: Limit{Rate: 1000, Interval: 10 * second, Burst: 200, Headroom: 0.1, TTL: 15 * second, Delay: second}}
}

// applyAt applies u at a time in seconds. It returns the rate and the burst of each holder, with their maxima in
// brackets if these are larger, and the credit and the level. An ! marks a holder that gets a grant.
func (d *division) applyAt(at float64, u Update) string {
	if !d.isOtherReplica {
		u.OwnHolders = d.memory
	}
	grants := d.state.Apply(&d.limit, 1000*second+int64(at*second), u)
	if !d.missesAnswer && !d.isOtherReplica {
		d.memory = d.state.Holders()
	}
	var text strings.Builder
	for _, h := range d.state.holders {
		fmt.Fprintf(&text, "%d: %d/%d", h.ID, h.Rate, h.Burst)
		if h.isReduced() {
			fmt.Fprintf(&text, " (%d/%d)", h.MaxRate, h.MaxBurst)
		}
		if slices.Contains(grants, Grant{h.ID, h.Rate, h.Burst}) {
			text.WriteString("!")
		}
		text.WriteString(", ")
	}
	fmt.Fprintf(&text, "credit %.1f, level %.1f", float64(d.state.credit)/nanosPerToken, float64(d.state.level)/nanosPerToken)
	return text.String()
}

type divisionStep struct {
	time    float64 // seconds
	update  Update
	want    string
	prepare func(*division) // runs before the update; can be nil
}

func report(holder HolderID, requests, denied int64) Report {
	return Report{Holder: holder, Requests: requests, Denied: denied}
}

func reports(all ...Report) Update { return Update{Reports: all} }

func frozenReports(all ...Report) Update { return Update{Reports: all, IsFrozen: true} }

func returningReport(holder HolderID, requests int64) Report {
	return Report{Holder: holder, Requests: requests, IsReturning: true}
}

// TestDivisionFollowsReports has the exact division after each update, because the bound of the other tests also holds for
// divisions that waste a part of the limit.
func TestDivisionFollowsReports(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Limit)
		steps  []divisionStep
	}{
		{name: "first holder gets all but the headroom", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 1000, 500)), "1: 900/109!, credit 81.0, level 0.0", nil},
			{10, reports(report(1, 450, 0)), "1: 900/129!, credit 61.0, level 0.0", nil},
			{20, reports(report(1, 600, 0)), "1: 900/144!, credit 46.0, level 0.0", nil},
			{21, reports(), "1: 900/144, credit 46.0, level 100.0", nil},
			{36, reports(), "credit 190.0, level 0.0", nil},
			{37, reports(), "credit 190.0, level 100.0", nil},
		}},
		{name: "newcomer takes a quarter of the free credit, then its share", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 1000, 500)), "1: 900/109!, credit 81.0, level 0.0", nil},
			{6, reports(report(2, 0, 0)), "1: 800/128 (900/128)!, 2: 13/2!, credit 60.0, level 100.0", nil},
			{10, reports(report(1, 450, 0), report(2, 100, 0)), "1: 625/125 (800/128)!, 2: 100/20!, credit 42.0, level 0.0", nil},
			{10.5, reports(report(1, 45, 0)), "1: 625/125 (800/128)!, 2: 100/20, credit 42.0, level 5.0", nil},
			{11, reports(report(2, 100, 20)), "1: 450/90 (800/128)!, 2: 100/20!, credit 42.0, level 0.0", nil},
			{11.5, reports(report(1, 45, 0)), "1: 450/90 (800/128)!, 2: 100/20, credit 42.0, level 5.0", nil},
			{15, reports(report(1, 450, 0), report(2, 500, 100)), "1: 450/90!, 2: 450/39!, credit 58.0, level 0.0", nil},
			{20, reports(report(1, 600, 0), report(2, 10, 0)), "1: 450/90!, 2: 450/54!, credit 46.0, level 0.0", nil},
			{25, reports(report(1, 600, 0), report(2, 0, 0)), "1: 450/90!, 2: 22/4 (450/54)!, credit 46.0, level 0.0", nil},
			{26, reports(report(1, 60, 0)), "1: 450/90!, 2: 22/4 (450/54), credit 46.0, level 40.0", nil},
			{27, reports(report(1, 60, 0)), "1: 450/90!, 2: 131/20 (450/54)!, credit 30.0, level 64.0", nil},
			{30, reports(report(1, 600, 0), report(2, 0, 0)), "1: 769/105!, 2: 1/1 (131/20)!, credit 45.0, level 0.0", nil},
			{32, reports(report(1, 600, 0)), "1: 769/121!, 2: 1/1 (131/20), credit 49.0, level 0.0", nil},
		}},
		{name: "three newcomers at once share the rate and a quarter of the credit", steps: []divisionStep{
			{0, reports(report(1, 0, 0), report(2, 0, 0), report(3, 0, 0)), "1: 300/25!, 2: 300/35!, 3: 300/60!, credit 70.0, level 200.0", nil},
			{1, reports(report(4, 0, 0), report(5, 0, 0)), "1: 180/36 (300/36)!, 2: 180/35 (300/35)!, 3: 180/36 (300/60)!, 4: 7/1!, 5: 6/1!, credit 57.0, level 200.0", nil},
			{2, reports(report(1, 900, 0)), "1: 229/39!, 2: 128/25 (300/35)!, 3: 128/25 (300/60)!, 4: 35/7!, 5: 36/7!, credit 42.0, level 0.0", nil},
			{3, reports(report(1, 900, 0)), "1: 229/45!, 2: 128/25 (300/35), 3: 128/25 (300/60), 4: 35/7, 5: 36/7, credit 36.0, level 0.0", nil},
			{4, reports(report(2, 900, 0), report(3, 900, 0)), "1: 229/45, 2: 233/27!, 3: 233/28!, 4: 100/14!, 5: 100/17!, credit 24.0, level 0.0", nil},
			{5, reports(report(1, 900, 0), report(2, 900, 0), report(3, 900, 0), report(4, 0, 0), report(5, 0, 0)), "1: 233/46!, 2: 233/29!, 3: 233/30!, 4: 100/17!, 5: 100/20!, credit 23.5, level 0.0", nil},
			{6, reports(report(1, 90, 0), report(2, 90, 0), report(3, 900, 0), report(4, 0, 0), report(5, 0, 0)), "1: 233/46!, 2: 233/33!, 3: 233/37!, 4: 1/1 (100/17)!, 5: 1/1 (100/20)!, credit 22.6, level 0.0", nil},
			{7, reports(report(1, 90, 0), report(2, 90, 0), report(3, 900, 0), report(4, 0, 0), report(5, 0, 0)), "1: 299/48!, 2: 299/36!, 3: 300/43!, 4: 1/1!, 5: 1/1!, credit 21.7, level 0.0", nil},
		}},
		{name: "frozen state admits newcomers from the reserve, and raises nobody", steps: []divisionStep{
			{0, frozenReports(report(1, 0, 0), report(2, 0, 0)), "1: 7/1!, 2: 6/1!, credit 8.0, level 0.0", nil},
			{1, frozenReports(report(3, 0, 0)), "1: 7/1, 2: 6/1, 3: 10/2!, credit 6.0, level 0.0", nil},
			{5, frozenReports(report(1, 100, 0), report(2, 1000, 0), report(3, 100, 0)), "1: 7/1!, 2: 6/1!, 3: 10/2!, credit 6.0, level 0.0", nil},
			{15.999, reports(report(1, 100, 0), report(2, 100, 0)), "1: 7/1!, 2: 6/1!, 3: 10/2, credit 6.0, level 0.0", nil},
			{16, reports(report(1, 100, 0), report(2, 100, 0)), "1: 312/2!, 2: 313/3!, 3: 275/4!, credit 1.1, level 0.0", nil},
			{16.5, reports(report(1, 100, 0), report(2, 100, 0), report(3, 0, 0)), "1: 312/3!, 2: 313/5!, 3: 275/6!, credit 1.1, level 0.0", nil},
		}},
		{name: "frozen state of a limit without headroom keeps one token for newcomers", change: func(l *Limit) { l.Headroom = 0 }, steps: []divisionStep{
			{0, frozenReports(report(1, 0, 0)), "1: 0/0!, credit 1.0, level 0.0", nil},
			{5, frozenReports(report(1, 1, 0)), "1: 0/0!, credit 1.0, level 0.0", nil},
			{16, reports(report(1, 1, 0)), "1: 1000/88!, credit 112.0, level 199.0", nil},
		}},
		{name: "returning holder waits for half of its share", steps: []divisionStep{
			{0, reports(report(1, 0, 0), report(2, 0, 0)), "1: 450/39!, 2: 450/69!, credit 82.0, level 200.0", nil},
			{1, reports(report(1, 0, 0), returningReport(3, 450)), "1: 450/59!, 2: 450/69, 3: 0/0, credit 62.0, level 0.0", nil},
			{6, reports(report(1, 100, 0), report(3, 450, 450)), "1: 450/66!, 2: 390/78 (450/78)!, 3: 0/0, credit 46.0, level 100.0", nil},
			{16, reports(report(1, 900, 0), report(3, 900, 900)), "1: 450/77!, 2: 100/20 (450/78)!, 3: 0/0, credit 35.0, level 0.0", nil},
		}},
		{name: "returning holder gets all at once if nobody has it", steps: []divisionStep{
			{0, reports(returningReport(1, 450)), "1: 900/83!, credit 107.0, level 0.0", nil},
			{1, reports(report(1, 90, 0)), "1: 900/109!, credit 81.0, level 10.0", nil},
		}},
		{name: "returning holder gets a grant after its old one has expired", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 450, 0), returningReport(2, 450)), "1: 900/109!, 2: 0/0, credit 81.0, level 0.0", nil},
			{10, reports(report(1, 450, 0), report(2, 450, 450)), "1: 900/129!, 2: 0/0, credit 61.0, level 0.0", nil},
			{20.9, reports(report(1, 900, 0)), "1: 900/144!, 2: 0/0, credit 46.0, level 0.0", nil},
			{21, reports(report(1, 10, 0), report(2, 900, 900)), "1: 450/90 (900/144)!, 2: 13/2!, credit 44.0, level 0.0", nil},
			{22.5, reports(report(1, 100, 0), report(2, 900, 900)), "1: 450/90!, 2: 450/22!, credit 37.0, level 50.0", nil},
		}},
		{name: "late renewal pays for a full bucket", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 0, 0)), "1: 900/109!, credit 81.0, level 200.0", nil},
			{19, reports(report(1, 0, 0)), "1: 900/129!, credit 61.0, level 200.0", nil},
			{19.5, reports(report(2, 0, 0)), "1: 400/80 (900/129)!, 2: 13/2!, credit 59.0, level 200.0", nil},
			{33.6, reports(report(1, 0, 0)), "1: 400/80!, 2: 500/15!, credit 15.0, level 120.0", nil},
			{33.7, reports(report(2, 0, 0)), "1: 400/80, 2: 500/19!, credit 12.0, level 130.0", nil},
		}},
		{name: "burst that grows again before its decrease is confirmed is spent", change: func(l *Limit) { l.Delay = 4 * second }, steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 0, 0)), "1: 900/109!, credit 81.0, level 200.0", nil},
			{10, reports(report(1, 0, 0), report(2, 0, 0)), "1: 400/80 (900/109)!, 2: 13/2!, credit 79.0, level 200.0", nil},
			{15, reports(report(1, 0, 0), report(2, 900, 900)), "1: 200/40 (400/80)!, 2: 500/35!, credit 75.0, level 200.0", nil},
			{16, reports(report(1, 900, 900), report(2, 0, 0)), "1: 400/49 (400/80)!, 2: 450/51 (500/51)!, credit 50.0, level 191.0", nil},
			{17, reports(report(1, 900, 900), report(2, 0, 0)), "1: 400/63 (400/80)!, 2: 50/10 (500/51)!, credit 45.0, level 186.0", nil},
		}},
		{name: "store that lost its data learns the holders from the replica, and freezes", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 450, 0)), "1: 900/109!, credit 81.0, level 0.0", nil},
			{6, reports(report(2, 0, 0)), "1: 800/109 (900/109)!, 2: 13/2!, credit 8.0, level 0.0", func(d *division) { d.state = State{} }},
			{10, reports(report(1, 450, 0)), "1: 800/109!, 2: 13/2, credit 8.0, level 0.0", nil},
			{21.999, reports(report(1, 900, 0), report(2, 900, 0)), "1: 450/90 (800/109)!, 2: 13/2!, credit 6.0, level 0.0", nil},
			{22, reports(report(1, 900, 0), report(2, 900, 0)), "1: 450/90 (800/109)!, 2: 100/7!, credit 1.0, level 0.0", nil},
		}},
		{name: "store that lost only expired holders does not freeze", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{16, reports(report(2, 0, 0)), "2: 900/83!, credit 107.0, level 0.0", func(d *division) { d.state = State{} }},
			{17, reports(report(2, 0, 0)), "2: 900/109!, credit 81.0, level 100.0", nil},
		}},
		{name: "store that lost a holder without a grant does not freeze", change: func(l *Limit) { l.Headroom = 0 }, steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 1000/88!, credit 112.0, level 200.0", nil},
			{5, reports(report(1, 0, 0), returningReport(2, 450)), "1: 1000/116!, 2: 0/0, credit 84.0, level 0.0", nil},
			{6, reports(report(3, 0, 0)), "2: 750/42!, 3: 250/50!, credit 108.0, level 200.0", func(d *division) { d.state, d.memory = State{}, d.memory[1:] }},
		}},
		{name: "replica that missed the answer of the store keeps its own grants", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 450, 0), report(2, 0, 0)), "1: 800/109 (900/109)!, 2: 13/2!, credit 79.0, level 0.0", nil},
			{10, reports(report(1, 90, 0), report(2, 900, 0)), "1: 450/90 (800/109)!, 2: 100/20!, credit 61.0, level 0.0", func(d *division) { d.missesAnswer = true }},
			{10.1, reports(report(1, 90, 0), report(2, 900, 0)), "1: 450/90 (800/109)!, 2: 100/20!, credit 43.9, level 0.0", func(d *division) { d.missesAnswer = false }},
			{12, reports(report(1, 90, 0), report(2, 900, 0)), "1: 450/90!, 2: 450/35!, credit 47.9, level 0.0", nil},
		}},
		{name: "replica changes no grant of another replica", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(2, 0, 0), report(3, 0, 0)), "1: 900/83, 2: 7/1!, 3: 6/1!, credit 105.0, level 200.0", func(d *division) { d.isOtherReplica = true }},
			{6, reports(report(1, 90, 0)), "1: 344/68 (900/83)!, 2: 7/1, 3: 6/1, credit 105.0, level 110.0", func(d *division) { d.isOtherReplica = false; d.memory = d.memory[:1] }},
			{8, reports(report(2, 900, 0), report(3, 900, 0)), "1: 344/68 (900/83), 2: 7/1!, 3: 6/1!, credit 105.0, level 0.0", func(d *division) { d.isOtherReplica = true }},
			{9, reports(report(2, 900, 0)), "1: 344/68 (900/83), 2: 7/1!, 3: 6/1, credit 105.0, level 0.0", nil},
			{11, reports(report(1, 900, 0)), "1: 300/60 (344/68)!, 2: 7/1, 3: 6/1, credit 120.0, level 0.0", func(d *division) { d.isOtherReplica = false; d.memory = d.memory[:1] }},
		}},
		{name: "each holder keeps the minimal share", change: func(l *Limit) { l.MinShare = 0.3 }, steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 450, 0), report(2, 0, 0)), "1: 750/109 (900/109)!, 2: 13/2!, credit 79.0, level 0.0", nil},
			{10, reports(report(1, 450, 0), report(2, 0, 0)), "1: 750/117!, 2: 150/25!, credit 48.0, level 0.0", nil},
			{15, reports(report(1, 450, 0), report(2, 0, 0)), "1: 750/123!, 2: 150/30!, credit 37.0, level 0.0", nil},
			{20, reports(report(1, 450, 0), report(2, 0, 0)), "1: 750/132!, 2: 150/30!, credit 28.0, level 0.0", nil},
		}},
		{name: "clock that goes back adds no tokens", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 450, 0)), "1: 900/109!, credit 81.0, level 0.0", nil},
			{-5, reports(report(1, 100, 0)), "1: 900/129!, credit 61.0, level 0.0", nil},
			{-4, reports(report(1, 100, 0)), "1: 900/144!, credit 46.0, level 0.0", nil},
		}},
		{name: "longer interval multiplies rates", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 450, 0), report(2, 0, 0)), "1: 800/109 (900/109)!, 2: 13/2!, credit 79.0, level 0.0", nil},
			{10, reports(report(1, 450, 0), report(2, 100, 0)), "1: 2040/117 (2400/117)!, 2: 300/20!, credit 53.0, level 0.0", func(d *division) { d.limit.Rate, d.limit.Interval = 3000, 30*second }},
		}},
		{name: "small change of a rate waits for a report, and a tiny one for a larger change", steps: []divisionStep{
			{0, reports(report(1, 0, 0), report(2, 0, 0)), "1: 450/39!, 2: 450/69!, credit 82.0, level 200.0", nil},
			{5, reports(report(1, 1000, 0), report(2, 180, 0)), "1: 450/49!, 2: 396/79 (450/79)!, credit 62.0, level 0.0", nil},
			{10, reports(report(1, 1000, 0), report(2, 180, 0)), "1: 504/64!, 2: 396/79!, credit 47.0, level 0.0", nil},
			{15, reports(report(1, 1000, 0), report(2, 180, 0)), "1: 504/75!, 2: 396/79!, credit 36.0, level 0.0", nil},
			{20, reports(report(2, 185, 0)), "1: 504/75, 2: 396/79!, credit 36.0, level 15.0", nil},
			{25, reports(report(1, 1000, 0), report(2, 186, 0)), "1: 490/84 (504/84)!, 2: 396/79!, credit 27.0, level 0.0", nil},
			{30, reports(report(1, 1000, 0), report(2, 187, 0)), "1: 490/87!, 2: 410/82!, credit 21.0, level 0.0", nil},
			{35, reports(report(2, 197, 0)), "1: 466/92 (490/92)!, 2: 410/82!, credit 16.0, level 3.0", nil},
		}},
		{name: "lower limit gives newcomers nothing while the old rates last", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, frozenReports(report(1, 0, 0), report(2, 0, 0)), "1: 250/83 (900/83)!, 2: 0/0!, credit 107.0, level 200.0", func(d *division) { d.limit.Rate = 500 }},
		}},
		{name: "limit that was zero waits until the decrease is confirmed", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(report(1, 0, 0)), "1: 0/0 (900/83)!, credit 107.0, level 200.0", func(d *division) { d.limit.Rate = 0 }},
			{5.5, reports(report(1, 0, 0)), "1: 0/0 (900/83)!, credit 107.0, level 200.0", func(d *division) { d.limit.Rate = 1000 }},
			{6.5, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
		}},
		{name: "returning holder of another replica gets its grant from this replica", steps: []divisionStep{
			{0, reports(report(1, 0, 0)), "1: 900/83!, credit 107.0, level 200.0", nil},
			{5, reports(returningReport(2, 450)), "1: 900/83, 2: 0/0, credit 107.0, level 0.0", func(d *division) { d.isOtherReplica = true }},
			{20, reports(report(1, 0, 0)), "1: 250/50!, 2: 0/0, credit 140.0, level 0.0", func(d *division) { d.isOtherReplica = false }},
			{21, reports(report(1, 0, 0)), "1: 900/85!, credit 105.0, level 100.0", nil},
			{22, reports(report(2, 450, 450)), "1: 900/85, 2: 13/2!, credit 103.0, level 200.0", func(d *division) { d.isOtherReplica = true }},
		}},
		{name: "returning holder accepts exactly half of its share", change: func(l *Limit) { l.Headroom = 0 }, steps: []divisionStep{
			{0, reports(report(1, 0, 0), report(2, 0, 0)), "1: 500/42!, 2: 500/72!, credit 86.0, level 200.0", nil},
			{5.5, reports(report(1, 1000, 0), report(2, 125, 0)), "1: 500/63!, 2: 250/50 (500/72)!, credit 65.0, level 0.0", nil},
			{11, reports(report(1, 1000, 0), report(2, 125, 0)), "1: 750/79!, 2: 250/50!, credit 49.0, level 0.0", nil},
			{16.5, reports(report(1, 1000, 0)), "1: 750/91!, 2: 250/50, credit 37.0, level 0.0", nil},
			{22, reports(report(1, 1000, 0)), "1: 750/100!, 2: 250/50, credit 28.0, level 0.0", nil},
			{27, reports(report(1, 1000, 0), returningReport(3, 5000)), "1: 750/102!, 3: 250/14!, credit 12.0, level 0.0", nil},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDivision()
			if c.change != nil {
				c.change(&d.limit)
			}
			for _, step := range c.steps {
				if step.prepare != nil {
					step.prepare(d)
				}
				assert.Equal(t, step.want, d.applyAt(step.time, step.update), "at %v s", step.time)
			}
		})
	}
}

func TestProductsAndQuotientsAreExact(t *testing.T) {
	for _, c := range []struct{ a, b, divisor, roundedDown, roundedUp int64 }{
		{6, 1, 2, 3, 3},
		{7, 3, 2, 10, 11},
		{0, 5, 3, 0, 0},
		{1 << 40, 1 << 40, 1 << 20, 1 << 60, 1 << 60},
		{1 << 40, 1 << 40, 1 << 16, math.MaxInt64, math.MaxInt64}, // 2^64
		{1<<33 - 2, 1<<32 + 1, 4, math.MaxInt64, math.MaxInt64},   // 2^63 - 1/2
		{math.MaxInt64, 3, 3, math.MaxInt64, math.MaxInt64},
	} {
		assert.Equal(t, c.roundedDown, mulDiv(c.a, c.b, c.divisor), "%d × %d / %d", c.a, c.b, c.divisor)
		assert.Equal(t, c.roundedUp, mulDivUp(c.a, c.b, c.divisor), "%d × %d / %d, rounded up", c.a, c.b, c.divisor)
	}
}

func TestExpiryFollowsTheHolderWithTheOldestReport(t *testing.T) {
	l := newDivision().limit
	for name, c := range map[string]struct {
		reportedAt []int64 // in seconds
		want       int64
	}{
		"no holder":           {nil, 0},
		"one holder":          {[]int64{1000}, 1016},
		"first is the oldest": {[]int64{1000, 1002, 1001}, 1016},
		"last is the oldest":  {[]int64{1002, 1001, 1000}, 1016},
	} {
		s := &State{}
		for i, seconds := range c.reportedAt {
			s.holders = append(s.holders, Holder{ID: HolderID(i), ReportedAt: seconds * second})
		}
		assert.Equal(t, c.want*second, s.Expiry(&l), name)
	}
}

func (d *division) newTransition(now int64, holders ...Holder) *transition {
	d.state.holders = holders
	t := &transition{State: &d.state, limit: d.limit, now: now}
	for i := range holders {
		t.members = append(t.members, &member{Holder: &holders[i], isOwn: true, hasReported: true})
	}
	return t
}

func TestNextDecreaseWaitsForConfirmationUnlessItIsLarge(t *testing.T) {
	for name, c := range map[string]struct{ burst, target, wantRate, wantBurst int64 }{
		"a quarter of the rate":            {10, 300, 400, 10},
		"more than a quarter of the rate":  {10, 299, 299, 10},
		"a quarter of the burst":           {100, 375, 400, 100},
		"more than a quarter of the burst": {100, 374, 374, 74},
	} {
		transition := newDivision().newTransition(1000*second, Holder{Rate: 400, Burst: c.burst, MaxRate: 500, MaxBurst: 100})
		transition.members[0].target = c.target
		transition.lowerRates()
		assert.Equal(t, []int64{c.wantRate, c.wantBurst}, []int64{transition.holders[0].Rate, transition.holders[0].Burst}, name)
	}
}

func TestTinyRaiseTakesNothingFromOtherHolders(t *testing.T) {
	transition := newDivision().newTransition(1000*second, Holder{ID: 1, Rate: 100, MaxRate: 100}, Holder{ID: 2, Rate: 750, MaxRate: 750})
	transition.members[0].target, transition.members[1].target = 200, 751
	transition.raiseRates()
	assert.Equal(t, int64(150), transition.holders[0].Rate)
	assert.Equal(t, int64(750), transition.holders[1].Rate)
}

func TestLargestDemandGetsTheRemainder(t *testing.T) {
	d := newDivision()
	d.limit.Rate, d.limit.MinShare = 100, 1 // 90 for 7 holders: each gets 12, or its demand of 13, and the last 5 get one more
	holders := []Holder{{ID: 1, Demands: [2]int64{13}}}
	for id := range HolderID(6) {
		holders = append(holders, Holder{ID: id + 2})
	}
	transition := d.newTransition(1000*second, holders...)
	transition.setTargets(func(*member) bool { return true })
	assert.Equal(t, int64(14), transition.members[0].target)
	assert.Equal(t, int64(12), transition.members[1].target)
}

func TestCreditIsWhatNoHolderCanHave(t *testing.T) {
	d := newDivision()
	d.state.credit, d.state.level = 10*nanosPerToken, 150*nanosPerToken
	transition := d.newTransition(1000*second, Holder{MaxRate: 100, MaxBurst: 20, ReportedAt: 998 * second})
	transition.raiseCredit()
	assert.Equal(t, int64(150-20-30), d.state.credit/nanosPerToken, "the holder can have its burst, and its rate since the report and for Delay")
}

func TestReplicaLearnsConfirmationOfItsLastGrantOnly(t *testing.T) {
	knownHolder := Holder{ID: 1, Rate: 400, Burst: 80, MaxRate: 800, MaxBurst: 160, ReducedAt: 990 * second, Interval: 10 * second}
	for name, c := range map[string]struct {
		change       func(*Holder)
		wantMaxRate  int64
		wantMaxBurst int64
	}{
		"same grant":      {func(*Holder) {}, 400, 80},
		"another rate":    {func(h *Holder) { h.Rate = 300 }, 800, 160},
		"another burst":   {func(h *Holder) { h.Burst = 70 }, 800, 160},
		"later reduction": {func(h *Holder) { h.ReducedAt += second }, 800, 160},
	} {
		storedHolder := knownHolder
		storedHolder.MaxRate, storedHolder.MaxBurst = 400, 80
		c.change(&storedHolder)
		transition := newDivision().newTransition(1000*second, storedHolder)
		transition.restoreOwnHolders([]Holder{knownHolder})
		h := transition.holders[0]
		assert.Equal(t, []int64{400, 80, c.wantMaxRate, c.wantMaxBurst}, []int64{h.Rate, h.Burst, h.MaxRate, h.MaxBurst}, name)
	}
}
