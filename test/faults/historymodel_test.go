package faults

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
)

// historyInput is a call with one hit on a key, or a loss of counters.
type historyInput struct {
	key  string
	loss lossKind
}

// lossKind is what Redis has lost.
type lossKind uint8

const (
	noLoss   lossKind = iota
	allLost           // Redis has started empty
	someLost          // Redis lacks its last writes
)

// historyOutput is the answer to a call.
type historyOutput struct {
	failed    bool   // the caller got no answer
	source    string // as in backend.Source
	allowed   bool
	remaining int64
}

// historyState is the state of one key in the model.
type historyState struct {
	count     int64 // hits that Redis has counted, as far as its answers show
	uncertain int64 // hits that Redis may have charged, or may charge later in a replay
	givenBack int64 // hits that Redis may have charged, and that the replica may give back
	admitted  int64
	losses    int64
	denied    bool // Redis has denied a hit
	lagging   bool // Redis lacks writes since its last answer
}

// historyModel is a fixed window that charges denied hits and does not end in the test. maxHits
// is the limit, and share the hits of all fallbacks together.
//
// Redis counts each hit once and in some order: its answers show the count after each hit. Between
// two answers, Redis may count only hits whose count no answer has shown. All admitted hits are
// within the bound of docs/failure.md.
func historyModel(maxHits, share int64) porcupine.Model {
	return porcupine.Model{
		Partition: partitionByKey,
		Init:      func() any { return historyState{} },
		Step: func(state, input, output any) (bool, any) {
			s := state.(historyState)
			switch input.(historyInput).loss {
			case allLost:
				s.count, s.lagging = 0, true
				s.losses++
				return true, s
			case someLost:
				s.lagging = true
				s.losses++
				return true, s
			}
			isLegal := s.answer(output.(historyOutput), maxHits)
			return isLegal && s.admitted <= (1+s.losses)*maxHits+share, s
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
	}
}

// answer changes s by the answer to a hit. It reports whether this answer is possible.
func (s *historyState) answer(o historyOutput, maxHits int64) bool {
	if o.allowed && !o.failed {
		s.admitted++
	}
	switch {
	case o.failed, o.source == "fallback":
		s.uncertain++
		if !o.allowed {
			s.givenBack++ // a late answer has charged a hit that is denied
		}
		return true
	case o.source == "deny_cache":
		return !o.allowed && (s.denied || s.count+s.uncertain >= maxHits)
	case o.allowed:
		return s.count+1 <= maxHits && s.countHit(maxHits-o.remaining)
	default: // Redis does not show counts beyond the limit
		s.denied = true
		return s.countHit(max(s.count+1, maxHits+1))
	}
}

// countHit sets the count after a hit. It reports whether this count is possible.
func (s *historyState) countHit(count int64) bool {
	hitsBetween := count - s.count - 1 // hits since the last answer
	if s.lagging {
		hitsBetween = max(hitsBetween, 0)
	}
	s.count, s.lagging = count, false
	s.uncertain -= max(hitsBetween, 0)
	s.givenBack -= max(-hitsBetween, 0)
	return s.uncertain >= 0 && s.givenBack >= 0
}

// partitionByKey divides a history by its keys. A loss concerns all keys.
func partitionByKey(history []porcupine.Operation) [][]porcupine.Operation {
	parts := map[string][]porcupine.Operation{}
	for _, op := range history {
		if input := op.Input.(historyInput); input.loss == noLoss {
			parts[input.key] = append(parts[input.key], op)
		}
	}
	var partitions [][]porcupine.Operation
	for _, part := range parts {
		for _, op := range history {
			if op.Input.(historyInput).loss != noLoss {
				part = append(part, op)
			}
		}
		partitions = append(partitions, part)
	}
	return partitions
}

// The histories have a limit of 2 and one hit of the fallback. The calls follow each other.
func TestHistoryModelRejectsWrongAnswers(t *testing.T) {
	redisAllows := func(remaining int64) historyOutput {
		return historyOutput{source: "redis", allowed: true, remaining: remaining}
	}
	redisDenies := historyOutput{source: "redis"}
	fallbackAllows := historyOutput{source: "fallback", allowed: true}
	loss := historyOutput{}
	for name, test := range map[string]struct {
		answers []historyOutput
		isLegal bool
	}{
		"all hits in order":                              {[]historyOutput{redisAllows(1), redisAllows(0), redisDenies}, true},
		"a hit charged twice":                            {[]historyOutput{redisAllows(0)}, false},
		"a hit forgotten":                                {[]historyOutput{redisAllows(1), redisAllows(1)}, false},
		"denied too early":                               {[]historyOutput{redisAllows(1), redisDenies}, false},
		"an unanswered hit is charged":                   {[]historyOutput{{failed: true}, redisAllows(0)}, true},
		"an unanswered hit is not charged":               {[]historyOutput{{failed: true}, redisAllows(1)}, true},
		"an unanswered hit is charged twice":             {[]historyOutput{redisAllows(1), {failed: true}, redisAllows(0), redisDenies, redisAllows(0)}, false},
		"the fallback within its share":                  {[]historyOutput{redisAllows(1), redisAllows(0), fallbackAllows}, true},
		"the fallback beyond its share":                  {[]historyOutput{redisAllows(1), redisAllows(0), fallbackAllows, fallbackAllows}, false},
		"a denial remembered too early":                  {[]historyOutput{redisAllows(1), {source: "deny_cache"}}, false},
		"a denial remembered":                            {[]historyOutput{redisAllows(1), redisAllows(0), redisDenies, {source: "deny_cache"}}, true},
		"counters lost":                                  {[]historyOutput{redisAllows(1), redisAllows(0), loss, redisAllows(1), redisAllows(0)}, true},
		"more hits admitted after a loss than the limit": {[]historyOutput{redisAllows(1), loss, redisAllows(1), redisAllows(0), redisAllows(0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var history []porcupine.Operation
			for i, answer := range test.answers {
				input := historyInput{key: "k"}
				if answer == loss {
					input = historyInput{loss: allLost}
				}
				history = append(history, porcupine.Operation{Input: input, Output: answer, Call: int64(2 * i), Return: int64(2*i + 1)})
			}
			assert.Equal(t, test.isLegal, porcupine.CheckOperations(historyModel(2, 1), history))
		})
	}
}
