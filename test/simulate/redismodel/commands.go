package redismodel

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// command is what the model knows of a command. minArgs and maxArgs count the name of the
// command; a maxArgs of 0 means no bound.
type command struct {
	minArgs, maxArgs int
	writes           bool
	run              func(s *Server, args []string) any
}

// commands has the commands by name. The init function breaks a cycle: scripts run commands.
var commands map[string]command

func init() {
	commands = map[string]command{
		"PING":     {1, 2, false, func(*Server, []string) any { return resp.Status("PONG") }},
		"HELLO":    {1, 0, false, hello},
		"CLIENT":   {2, 0, false, func(*Server, []string) any { return resp.Status("OK") }},
		"TIME":     {1, 1, false, serverTime},
		"WAIT":     {3, 3, false, func(*Server, []string) any { return int64(0) }}, // there are no Redis replicas
		"EVAL":     {3, 0, false, evalText},
		"EVALSHA":  {3, 0, false, evalDigest},
		"SCRIPT":   {2, 0, false, script},
		"GET":      {2, 2, false, get},
		"MGET":     {2, 0, false, mget},
		"SET":      {3, 0, true, set},
		"DEL":      {2, 0, true, del},
		"INCR":     {2, 2, true, incr},
		"INCRBY":   {3, 3, true, incrby},
		"PEXPIRE":  {3, 4, true, pexpire},
		"PTTL":     {2, 2, false, pttl},
		"SETRANGE": {4, 4, true, setrange},
		"LLEN":     {2, 2, false, llen},
		"LRANGE":   {4, 4, false, lrange},
		"LTRIM":    {4, 4, true, ltrim},
		"RPUSH":    {3, 0, true, rpush},
		"ZADD":     {4, 0, true, zadd},
		"ZREM":     {3, 0, true, zrem},
		"ZCARD":    {2, 2, false, zcard},
		"ZSCORE":   {3, 3, false, zscore},
		"EXPIRE":   {3, 4, true, expire},
		"HGET":     {3, 3, false, hget},
		"HMGET":    {3, 0, false, hmget},
		"HGETALL":  {2, 2, false, hgetall},
		"HSET":     {4, 0, true, hset},
		"HDEL":     {3, 0, true, hdel},
		"HINCRBY":  {4, 4, true, hincrby},

		"ZRANGEBYSCORE":    {4, 0, false, zrangebyscore},
		"ZREVRANGEBYSCORE": {4, 0, false, zrevrangebyscore},
	}
}

const (
	errWrongType  = resp.Failure("WRONGTYPE Operation against a key holding the wrong kind of value")
	errNotInteger = resp.Failure("ERR value is not an integer or out of range")
	errSyntax     = resp.Failure("ERR syntax error")
)

// integer returns the number in text, which Redis reads without spaces, plus and leading zeros.
func integer(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text
}

// hello refuses the protocol RESP3, so clients use RESP2.
func hello(*Server, []string) any { return resp.Failure("NOPROTO unsupported protocol version") }

func serverTime(s *Server, _ []string) any {
	micros := s.time.UnixMicro()
	return []any{strconv.FormatInt(micros/1e6, 10), strconv.FormatInt(micros%1e6, 10)}
}

func get(s *Server, args []string) any {
	switch e := s.find(args[1]); {
	case e == nil:
		return nil
	case !e.isString():
		return errWrongType
	default:
		return e.text
	}
}

func mget(s *Server, args []string) any {
	replies := make([]any, len(args)-1)
	for i, name := range args[1:] {
		if e := s.find(name); e != nil && e.isString() {
			replies[i] = e.text
		}
	}
	return replies
}

// set knows the options PX and NX.
func set(s *Server, args []string) any {
	e, onlyNew := &entry{text: args[2]}, false
	for i := 3; i < len(args); i++ {
		switch strings.ToUpper(args[i]) {
		case "NX":
			onlyNew = true
		case "PX":
			i++
			if i == len(args) || e.expires > 0 {
				return errSyntax
			}
			ttl, ok := integer(args[i])
			if !ok {
				return errNotInteger
			}
			if ttl <= 0 || ttl > math.MaxInt64-s.time.UnixMilli() {
				return resp.Failure("ERR invalid expire time in 'set' command")
			}
			e.expires = s.time.UnixMilli() + ttl
		default:
			return errSyntax
		}
	}
	if onlyNew && s.find(args[1]) != nil {
		return nil
	}
	s.keys[args[1]] = e
	return resp.Status("OK")
}

func del(s *Server, args []string) any {
	deleted := int64(0)
	for _, name := range args[1:] {
		if s.find(name) != nil {
			delete(s.keys, name)
			deleted++
		}
	}
	return deleted
}

func incr(s *Server, args []string) any { return incrby(s, append(args, "1")) }

func incrby(s *Server, args []string) any {
	n, ok := integer(args[2])
	if !ok {
		return errNotInteger
	}
	e := s.find(args[1])
	if e != nil && !e.isString() {
		return errWrongType
	}
	count := int64(0)
	if e != nil {
		if count, ok = integer(e.text); !ok {
			return errNotInteger
		}
	}
	if n > 0 && count > math.MaxInt64-n || n < 0 && count < math.MinInt64-n {
		return resp.Failure("ERR increment or decrement would overflow")
	}
	if e == nil {
		e = &entry{}
		s.keys[args[1]] = e
	}
	e.text = strconv.FormatInt(count+n, 10)
	return count + n
}

// pexpire knows no options, as rls uses none.
func pexpire(s *Server, args []string) any {
	ttl, ok := integer(args[2])
	switch {
	case !ok:
		return errNotInteger
	case len(args) > 3:
		return resp.Failure("ERR Unsupported option " + args[3])
	case ttl > 0 && ttl > math.MaxInt64-s.time.UnixMilli() || ttl < math.MinInt64+s.time.UnixMilli():
		return resp.Failure("ERR invalid expire time in 'pexpire' command")
	}
	e := s.find(args[1])
	switch {
	case e == nil:
		return int64(0)
	case ttl <= 0:
		delete(s.keys, args[1])
	default:
		e.expires = s.time.UnixMilli() + ttl
	}
	return int64(1)
}

// expire knows times to live of less than a thousand years.
func expire(s *Server, args []string) any {
	seconds, ok := integer(args[2])
	if !ok {
		return errNotInteger
	}
	return pexpire(s, append([]string{args[0], args[1], strconv.FormatInt(seconds*1000, 10)}, args[3:]...))
}

func pttl(s *Server, args []string) any {
	switch e := s.find(args[1]); {
	case e == nil:
		return int64(-2)
	case e.expires == 0:
		return int64(-1)
	default:
		return e.expires - s.time.UnixMilli()
	}
}

// maxString is the maximum length of a string in Redis.
const maxString = 512 << 20

func setrange(s *Server, args []string) any {
	offset, ok := integer(args[2])
	e := s.find(args[1])
	switch {
	case !ok:
		return errNotInteger
	case offset < 0:
		return resp.Failure("ERR offset is out of range")
	case e != nil && !e.isString():
		return errWrongType
	case args[3] == "" && e == nil:
		return int64(0)
	case args[3] == "":
		return int64(len(e.text))
	case offset+int64(len(args[3])) > maxString:
		return resp.Failure("ERR string exceeds maximum allowed size (proto-max-bulk-len)")
	}
	if e == nil {
		e = &entry{}
		s.keys[args[1]] = e
	}
	text := []byte(e.text)
	if end := int(offset) + len(args[3]); end > len(text) {
		text = append(text, make([]byte, end-len(text))...)
	}
	copy(text[offset:], args[3])
	e.text = string(text)
	return int64(len(text))
}

// findList returns the list of a key. It is nil if the key does not exist.
func (s *Server) findList(name string) (*entry, any) {
	e := s.find(name)
	if e != nil && e.list == nil {
		return nil, errWrongType
	}
	return e, nil
}

func llen(s *Server, args []string) any {
	e, err := s.findList(args[1])
	if err != nil {
		return err
	}
	if e == nil {
		return int64(0)
	}
	return int64(len(e.list))
}

// section returns the part of list from start to stop. Negative places count from the end.
func section(list []string, start, stop int64) []string {
	size := int64(len(list))
	if start < 0 {
		start = max(start+size, 0)
	}
	if stop < 0 {
		stop += size
	}
	stop = min(stop, size-1)
	if start > stop || start >= size {
		return nil
	}
	return list[start : stop+1]
}

// findSection returns the list of a command and its part from the second argument to the third. The
// entry is nil if the key has no list.
func (s *Server) findSection(args []string) (e *entry, part []string, err any) {
	start, isStart := integer(args[2])
	stop, isStop := integer(args[3])
	if !isStart || !isStop {
		return nil, nil, errNotInteger
	}
	if e, err = s.findList(args[1]); err != nil || e == nil {
		return nil, nil, err
	}
	return e, section(e.list, start, stop), nil
}

func lrange(s *Server, args []string) any {
	_, part, err := s.findSection(args)
	if err != nil {
		return err
	}
	replies := []any{}
	for _, element := range part {
		replies = append(replies, element)
	}
	return replies
}

func ltrim(s *Server, args []string) any {
	e, part, err := s.findSection(args)
	if err != nil {
		return err
	}
	if e != nil {
		e.list = slices.Clone(part)
		if len(e.list) == 0 {
			delete(s.keys, args[1])
		}
	}
	return resp.Status("OK")
}

func rpush(s *Server, args []string) any {
	e, err := s.findList(args[1])
	if err != nil {
		return err
	}
	if e == nil {
		e = &entry{}
		s.keys[args[1]] = e
	}
	e.list = append(e.list, args[2:]...)
	return int64(len(e.list))
}
