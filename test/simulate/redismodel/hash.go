package redismodel

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// findHash returns the hash of a key. It is nil if the key does not exist.
func (s *Server) findHash(name string) (*entry, any) {
	e := s.find(name)
	if e != nil && e.fields == nil {
		return nil, errWrongType
	}
	return e, nil
}

// findOrAddHash returns the hash of a key, which it creates if the key does not exist.
func (s *Server) findOrAddHash(name string) (*entry, any) {
	e, err := s.findHash(name)
	if e == nil && err == nil {
		e = &entry{fields: map[string]string{}}
		s.keys[name] = e
	}
	return e, err
}

func hget(s *Server, args []string) any {
	replies, isList := hmget(s, args).([]any)
	if !isList {
		return errWrongType
	}
	return replies[0]
}

func hmget(s *Server, args []string) any {
	e, err := s.findHash(args[1])
	if err != nil {
		return err
	}
	replies := make([]any, len(args)-2)
	for i, field := range args[2:] {
		if e == nil {
			continue
		}
		if text, ok := e.fields[field]; ok {
			replies[i] = text
		}
	}
	return replies
}

// hgetall returns the fields in the order of their names. Redis has another order.
func hgetall(s *Server, args []string) any {
	e, err := s.findHash(args[1])
	if err != nil {
		return err
	}
	replies := []any{}
	if e != nil {
		for _, field := range slices.Sorted(maps.Keys(e.fields)) {
			replies = append(replies, field, e.fields[field])
		}
	}
	return replies
}

func hset(s *Server, args []string) any {
	pairs := args[2:]
	if len(pairs)%2 != 0 {
		return resp.Failure("ERR wrong number of arguments for 'hset' command")
	}
	e, err := s.findOrAddHash(args[1])
	if err != nil {
		return err
	}
	sizeBefore := len(e.fields)
	for pair := range slices.Chunk(pairs, 2) {
		e.fields[pair[0]] = pair[1]
	}
	return int64(len(e.fields) - sizeBefore)
}

func hdel(s *Server, args []string) any {
	e, err := s.findHash(args[1])
	if err != nil {
		return err
	}
	if e == nil {
		return int64(0)
	}
	sizeBefore := len(e.fields)
	for _, field := range args[2:] {
		delete(e.fields, field)
	}
	if len(e.fields) == 0 {
		delete(s.keys, args[1])
	}
	return int64(sizeBefore - len(e.fields))
}

func hincrby(s *Server, args []string) any {
	n, ok := integer(args[3])
	if !ok {
		return errNotInteger
	}
	e, err := s.findHash(args[1])
	if err != nil {
		return err
	}
	count := int64(0)
	if e != nil && e.fields[args[2]] != "" {
		if count, ok = integer(e.fields[args[2]]); !ok {
			return resp.Failure("ERR hash value is not an integer")
		}
	}
	if n > 0 && count > math.MaxInt64-n || n < 0 && count < math.MinInt64-n {
		return resp.Failure("ERR increment or decrement would overflow")
	}
	if e, err = s.findOrAddHash(args[1]); err != nil {
		return err
	}
	e.fields[args[2]] = strconv.FormatInt(count+n, 10)
	return count + n
}
