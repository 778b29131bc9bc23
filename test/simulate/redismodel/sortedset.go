package redismodel

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

const errNotFloat = resp.Failure("ERR value is not a valid float")

// setMember is a member of a sorted set, with its score.
type setMember struct {
	member string
	score  float64
}

// findSet returns the sorted set of a key. It is nil if the key does not exist.
func (s *Server) findSet(name string) (*entry, any) {
	e := s.find(name)
	if e != nil && e.scores == nil {
		return nil, errWrongType
	}
	return e, nil
}

// zadd knows no options, as rls uses none.
func zadd(s *Server, args []string) any {
	pairs := args[2:]
	if len(pairs)%2 != 0 {
		return errSyntax
	}
	scores := make([]float64, len(pairs)/2)
	for i := range scores {
		score, err := strconv.ParseFloat(pairs[2*i], 64)
		if err != nil || math.IsNaN(score) {
			return errNotFloat
		}
		scores[i] = score
	}
	e, err := s.findSet(args[1])
	if err != nil {
		return err
	}
	if e == nil {
		e = &entry{scores: map[string]float64{}}
		s.keys[args[1]] = e
	}
	sizeBefore := len(e.scores)
	for i, score := range scores {
		e.scores[pairs[2*i+1]] = score
	}
	return int64(len(e.scores) - sizeBefore)
}

func zrem(s *Server, args []string) any {
	e, err := s.findSet(args[1])
	if err != nil {
		return err
	}
	removed := int64(0)
	for _, member := range args[2:] {
		if e == nil {
			break
		}
		if _, ok := e.scores[member]; ok {
			delete(e.scores, member)
			removed++
		}
	}
	if e != nil && len(e.scores) == 0 {
		delete(s.keys, args[1])
	}
	return removed
}

func zcard(s *Server, args []string) any {
	e, err := s.findSet(args[1])
	switch {
	case err != nil:
		return err
	case e == nil:
		return int64(0)
	}
	return int64(len(e.scores))
}

func zscore(s *Server, args []string) any {
	e, err := s.findSet(args[1])
	if err != nil {
		return err
	}
	if e != nil {
		if score, ok := e.scores[args[2]]; ok {
			return scoreText(score)
		}
	}
	return nil
}

func zrangebyscore(s *Server, args []string) any {
	return s.rangeByScore(args, args[2], args[3], func([]setMember) {})
}

func zrevrangebyscore(s *Server, args []string) any {
	return s.rangeByScore(args, args[3], args[2], slices.Reverse[[]setMember])
}

// rangeByScore returns the members from one score to another. arrange changes their order, which is
// ascending. It knows the options WITHSCORES and LIMIT.
func (s *Server) rangeByScore(args []string, from, to string, arrange func([]setMember)) any {
	first, isAfterFirst, ok := scoreBound(from)
	last, isBeforeLast, ok2 := scoreBound(to)
	if !ok || !ok2 {
		return resp.Failure("ERR min or max is not a float")
	}
	withScores, offset, count := false, int64(0), int64(-1)
	for i := 4; i < len(args); i++ {
		switch strings.ToUpper(args[i]) {
		case "WITHSCORES":
			withScores = true
		case "LIMIT":
			if i+2 >= len(args) {
				return errSyntax
			}
			if offset, ok = integer(args[i+1]); !ok {
				return errNotInteger
			}
			if count, ok = integer(args[i+2]); !ok {
				return errNotInteger
			}
			i += 2
		default:
			return errSyntax
		}
	}
	e, err := s.findSet(args[1])
	if err != nil {
		return err
	}
	replies := []any{}
	if e == nil || offset < 0 {
		return replies
	}
	all := e.sortedMembers()
	arrange(all)
	for _, m := range all {
		switch {
		case m.score < first, m.score > last, isAfterFirst && m.score == first, isBeforeLast && m.score == last:
			continue
		case offset > 0:
			offset--
			continue
		case count == 0:
			return replies
		}
		count--
		replies = append(replies, m.member)
		if withScores {
			replies = append(replies, scoreText(m.score))
		}
	}
	return replies
}

// sortedMembers returns the members of a sorted set in the order of Redis.
func (e *entry) sortedMembers() []setMember {
	var all []setMember
	for member, score := range e.scores {
		all = append(all, setMember{member, score})
	}
	slices.SortFunc(all, func(a, b setMember) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.member, b.member))
	})
	return all
}

// scoreBound reads a bound of a range. A ( excludes the bound.
func scoreBound(text string) (score float64, isExcluded, ok bool) {
	text, isExcluded = strings.CutPrefix(text, "(")
	score, err := strconv.ParseFloat(text, 64)
	return score, isExcluded, err == nil && !math.IsNaN(score)
}

// scoreText returns a score as Redis 7.0 writes it.
func scoreText(score float64) string { return strconv.FormatFloat(score, 'g', 17, 64) }
