// Package redismodel is a model of a Redis server: the commands and scripts that rls uses, on
// a clock that the caller gives. The tests compare it with a real Redis.
//
// The scripts are the real files of package lua. They run in an interpreter of Lua, and their
// commands change the model.
package redismodel

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	lua "github.com/yuin/gopher-lua"

	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// Server is a model of a Redis server. It is not safe for concurrent use.
type Server struct {
	keys    map[string]*entry
	time    time.Time // of the command in progress
	scripts map[string]*lua.FunctionProto
	lua     *lua.LState
	mode    resp.Mode
	copied  map[string]entry // for the next restart
}

// entry is the value of a key: a string, a list if list is not nil, a sorted set if scores is not nil, or a
// hash if fields is not nil.
type entry struct {
	text    string
	list    []string
	scores  map[string]float64
	fields  map[string]string
	expires int64 // milliseconds since 1970, or 0
}

func (e *entry) isString() bool { return e.list == nil && e.scores == nil && e.fields == nil }

func (e *entry) clone() entry {
	return entry{e.text, slices.Clone(e.list), maps.Clone(e.scores), maps.Clone(e.fields), e.expires}
}

// New returns an empty Server.
func New() *Server {
	return &Server{keys: map[string]*entry{}, scripts: map[string]*lua.FunctionProto{}}
}

// Close frees the interpreter of scripts.
func (s *Server) Close() {
	if s.lua != nil {
		s.lua.Close()
	}
}

// Do executes a command at a time. AppendReply turns the reply into bytes.
func (s *Server) Do(now time.Time, args []string) any {
	s.time = now
	if args[0] == "MODEL" {
		return s.control(args[1:])
	}
	return s.do(args)
}

// control executes a command that only the model has:
//
//	COPY           keeps a copy of all keys
//	RESTART EMPTY  forgets all scripts and keys
//	RESTART COPY   forgets all scripts, and has the kept keys
//	MODE number    changes the resp.Mode
//	LIST           returns a line for each key: its name and its string in quotes, and whether it has
//	               a time to live. Only strings are not empty
//	VALUE key      returns the string of a key, or the elements of its list with spaces in between
func (s *Server) control(args []string) any {
	if args[0] == "VALUE" {
		return s.value(args[1])
	}
	switch strings.Join(args[:min(len(args), 2)], " ") {
	case "COPY":
		s.copied = map[string]entry{}
		for name, e := range s.keys {
			s.copied[name] = e.clone()
		}
	case "RESTART EMPTY":
		clear(s.keys)
		clear(s.scripts)
	case "RESTART COPY":
		clear(s.keys)
		clear(s.scripts)
		for name, e := range s.copied {
			restored := e.clone()
			s.keys[name] = &restored
		}
	case "LIST":
		return s.list()
	default:
		number, err := strconv.Atoi(args[len(args)-1])
		if args[0] != "MODE" || err != nil {
			return resp.Failure("ERR the model has no command " + strings.Join(args, " "))
		}
		s.mode = resp.Mode(number)
	}
	return resp.Status("OK")
}

func (s *Server) list() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.keys)) {
		if e := s.find(name); e != nil {
			fmt.Fprintf(&b, "%q %q %t\n", name, e.text, e.expires > 0)
		}
	}
	return b.String()
}

func (s *Server) value(name string) string {
	e := s.find(name)
	if e == nil {
		return ""
	}
	return e.text + strings.Join(e.list, " ")
}

func (s *Server) do(args []string) any {
	name := strings.ToUpper(args[0])
	c, ok := commands[name]
	switch {
	case !ok:
		return resp.Failure("ERR unknown command '" + args[0] + "'")
	case len(args) < c.minArgs || c.maxArgs > 0 && len(args) > c.maxArgs:
		return resp.Failure("ERR wrong number of arguments for '" + strings.ToLower(name) + "' command")
	case s.mode == resp.Loading && name != "PING":
		return resp.Failure("LOADING Redis is loading the dataset in memory")
	case s.mode == resp.ReadOnly && c.writes:
		return resp.Failure("READONLY You can't write against a read only replica.")
	}
	return c.run(s, args)
}

// find returns the value of a key, or nil. It removes a key that has expired.
func (s *Server) find(name string) *entry {
	e := s.keys[name]
	if e != nil && e.expires > 0 && s.time.UnixMilli() > e.expires {
		delete(s.keys, name)
		return nil
	}
	return e
}

// digest returns the name of a script.
func digest(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis names scripts by SHA-1
	return hex.EncodeToString(sum[:])
}
