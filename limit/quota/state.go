package quota

import (
	"encoding/binary"
	"errors"
	"slices"
)

// State is the state of one limit: its holders, and the tokens that nobody has. The zero State is a new limit.
type State struct {
	appliedAt int64 // the time of the last Apply, in microseconds; 0 for a new state
	interval  int64 // Limit.Interval at the last Apply; the rates of the holders are tokens in this time
	credit    int64 // billionths of a token
	// level is the fill of an imaginary bucket with the Rate and the Burst of the limit, in billionths of a token. Each report
	// takes its admitted requests out of this bucket.
	level int64
	// Until the time frozenUntil, no rate is raised, and new holders together may take frozenRate.
	frozenUntil, frozenRate int64
	holders                 []Holder // sorted by ID
}

// Holders returns a copy of all holders, sorted by ID.
func (s *State) Holders() []Holder { return slices.Clone(s.holders) }

// Expiry returns the time at which the first holder expires, or 0 without holders. If nobody reports, the replicas should
// call Apply at that time, so that the rate of the holder goes to the others.
func (s *State) Expiry(l *Limit) int64 {
	firstExpiry := int64(0)
	for i := range s.holders {
		if expiry := s.holders[i].expiry(l); firstExpiry == 0 || expiry < firstExpiry {
			firstExpiry = expiry
		}
	}
	return firstExpiry
}

func (h *Holder) expiry(l *Limit) int64 { return max(h.SentAt, h.ReportedAt) + l.TTL + l.Delay }

// layout is the first byte of an encoded state.
const layout = 1

// ErrState is the error of Decode if the bytes are not an encoded state.
var ErrState = errors.New("quota: can't decode the state; want bytes that State.Append wrote")

// Append appends the encoded state to b. A holder takes about 40 bytes.
func (s *State) Append(b []byte) []byte {
	b = append(b, layout)
	for _, n := range []int64{s.appliedAt, s.interval, s.credit, s.level, max(s.frozenUntil-s.appliedAt, 0), s.frozenRate, int64(len(s.holders))} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for i := range s.holders {
		h := &s.holders[i]
		b = binary.LittleEndian.AppendUint64(b, uint64(h.ID))
		for _, n := range []int64{
			h.Rate, h.Burst, h.MaxRate - h.Rate, h.MaxBurst - h.Burst, h.Demands[0], h.Demands[1],
			s.age(h.JoinedAt), s.age(h.ReportedAt), s.age(h.SentAt), s.age(h.ReducedAt),
		} {
			b = binary.AppendUvarint(b, uint64(n))
		}
	}
	return b
}

// age encodes a time as the microseconds from the time to s.appliedAt, plus 1. So 0 can mean that there is no time.
func (s *State) age(time int64) int64 {
	if time == 0 {
		return 0
	}
	return s.appliedAt - time + 1
}

// Decode returns the state that Append encoded, or a new state for no bytes. After an error, the caller can use a new
// state, as if the store had lost its data: the caller sets Update.IsFrozen in the next Apply.
func Decode(b []byte) (*State, error) {
	s := &State{}
	if len(b) == 0 {
		return s, nil
	}
	r := reader{b[1:], b[0] == layout}
	s.appliedAt, s.interval = r.number(1<<60), r.number(1<<60)
	s.credit, s.level = r.number(maxTokens*nanosPerToken), r.number(maxTokens*nanosPerToken)
	s.frozenUntil, s.frozenRate = s.appliedAt+r.number(1<<60), r.number(maxTokens)
	count := r.number(int64(len(r.rest)) / 18) // the shortest holder has 18 bytes
	s.holders = make([]Holder, count)
	for i := range s.holders {
		h := &s.holders[i]
		h.ID, h.Interval = r.id(), s.interval
		h.Rate, h.Burst = r.number(maxTokens), r.number(maxTokens)
		h.MaxRate, h.MaxBurst = h.Rate+r.number(maxTokens), h.Burst+r.number(maxTokens)
		h.Demands = [2]int64{r.number(maxTokens), r.number(maxTokens)}
		for _, time := range []*int64{&h.JoinedAt, &h.ReportedAt, &h.SentAt, &h.ReducedAt} {
			if age := r.number(s.appliedAt); age > 0 {
				*time = s.appliedAt - age + 1
			}
		}
		r.isValid = r.isValid && (i == 0 || s.holders[i-1].ID < h.ID)
	}
	if !r.isValid || len(r.rest) > 0 || s.appliedAt == 0 {
		return &State{}, ErrState
	}
	return s, nil
}

// reader reads numbers. After a wrong number it returns zeros.
type reader struct {
	rest    []byte // the bytes that are not read yet
	isValid bool
}

func (r *reader) number(largest int64) int64 {
	n, size := binary.Uvarint(r.rest)
	if r.isValid = r.isValid && size > 0 && n <= uint64(largest); !r.isValid {
		return 0
	}
	r.rest = r.rest[size:]
	return int64(n)
}

func (r *reader) id() HolderID {
	if r.isValid = r.isValid && len(r.rest) >= 8; !r.isValid {
		return 0
	}
	id := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return HolderID(id)
}
