package redismodel

import (
	"math"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

func evalText(s *Server, args []string) any {
	name, err := s.load(args[1])
	if err != nil {
		return err
	}
	return s.eval(s.scripts[name], args)
}

// load compiles and keeps a script. It returns the digest, or a failure.
func (s *Server) load(text string) (name string, err any) {
	name = digest(text)
	if s.scripts[name] == nil {
		chunk, err := parse.Parse(strings.NewReader(text), "user_script")
		if err != nil {
			return "", resp.Failure("ERR Error compiling script: " + err.Error())
		}
		splitAssignments(chunk)
		compiled, err := lua.Compile(chunk, "user_script")
		if err != nil {
			return "", resp.Failure("ERR Error compiling script: " + err.Error())
		}
		s.scripts[name] = compiled
	}
	return name, nil
}

func evalDigest(s *Server, args []string) any {
	if compiled := s.scripts[strings.ToLower(args[1])]; compiled != nil {
		return s.eval(compiled, args)
	}
	return resp.Failure("NOSCRIPT No matching script. Please use EVAL.")
}

func script(s *Server, args []string) any {
	switch strings.ToUpper(args[1]) {
	case "FLUSH":
		clear(s.scripts)
		return resp.Status("OK")
	case "LOAD":
		if len(args) == 3 {
			name, err := s.load(args[2])
			if err != nil {
				return err
			}
			return name
		}
	}
	return resp.Failure("ERR unknown subcommand or wrong number of arguments for '" + args[1] + "'")
}

// eval runs a script. args are those of EVAL.
func (s *Server) eval(compiled *lua.FunctionProto, args []string) any {
	count, ok := integer(args[2])
	switch {
	case !ok:
		return errNotInteger
	case count < 0:
		return resp.Failure("ERR Number of keys can't be negative")
	case count > int64(len(args)-3):
		return resp.Failure("ERR Number of keys can't be greater than number of args")
	}
	if s.lua == nil {
		s.lua = s.newInterpreter()
	}
	l := s.lua
	l.SetGlobal("KEYS", stringsTable(l, args[3:3+count]))
	l.SetGlobal("ARGV", stringsTable(l, args[3+count:]))
	l.Push(l.NewFunctionFromProto(compiled))
	if err := l.PCall(0, 1, nil); err != nil {
		l.SetTop(0)
		return scriptFailure(err)
	}
	result := l.Get(-1)
	l.SetTop(0)
	return fromLua(result)
}

// scriptFailure returns the reply to a script that has raised err.
func scriptFailure(err error) resp.Failure {
	if raised, ok := err.(*lua.ApiError); ok { //nolint:errorlint // PCall wraps nothing
		if t, ok := raised.Object.(*lua.LTable); ok {
			return resp.Failure(lua.LVAsString(t.RawGetString("err")))
		}
		return resp.Failure("ERR " + strings.ReplaceAll(raised.Object.String(), "\n", " "))
	}
	return resp.Failure("ERR " + strings.ReplaceAll(err.Error(), "\n", " "))
}

// newInterpreter returns an interpreter with the libraries that Redis gives to scripts.
func (s *Server) newInterpreter() *lua.LState {
	l := lua.NewState(lua.Options{SkipOpenLibs: true, RegistryMaxSize: 1 << 20, CallStackSize: 1024})
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable, lua.OpenString, lua.OpenMath} {
		l.Push(l.NewFunction(open))
		l.Call(0, 0)
	}
	l.SetGlobal("redis", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{
		"call":  func(l *lua.LState) int { return s.callFromLua(l, true) },
		"pcall": func(l *lua.LState) int { return s.callFromLua(l, false) },
	}))
	l.SetGlobal("cmsgpack", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{"pack": packMessage, "unpack": unpackMessage}))
	l.SetGlobal("struct", l.SetFuncs(l.NewTable(), map[string]lua.LGFunction{"pack": packStruct, "unpack": unpackStruct}))
	return l
}

// callFromLua executes the command in the arguments of redis.call, or of redis.pcall if raises
// is not set.
func (s *Server) callFromLua(l *lua.LState, raises bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		switch v := l.Get(i + 1).(type) {
		case lua.LString:
			args[i] = string(v)
		case lua.LNumber:
			args[i] = numberText(float64(v))
		default:
			l.RaiseError("Lua redis lib command arguments must be strings or integers")
		}
	}
	reply := s.do(args)
	if err, failed := reply.(resp.Failure); failed && raises {
		l.Error(errorTable(l, err), 1)
	}
	l.Push(toLua(l, reply))
	return 1
}

// numberText returns a number as an argument of a command.
func numberText(n float64) string {
	if n == math.Trunc(n) && math.Abs(n) < 1<<53 {
		return strconv.FormatInt(int64(n), 10)
	}
	return strconv.FormatFloat(n, 'g', 17, 64)
}

func stringsTable(l *lua.LState, texts []string) *lua.LTable {
	t := l.CreateTable(len(texts), 0)
	for _, text := range texts {
		t.Append(lua.LString(text))
	}
	return t
}

func errorTable(l *lua.LState, err resp.Failure) *lua.LTable {
	t := l.NewTable()
	t.RawSetString("err", lua.LString(err))
	return t
}

// toLua converts the reply of a command to a value for a script.
func toLua(l *lua.LState, reply any) lua.LValue {
	switch r := reply.(type) {
	case int64:
		return lua.LNumber(r)
	case string:
		return lua.LString(r)
	case resp.Status:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(r))
		return t
	case resp.Failure:
		return errorTable(l, r)
	case []any:
		t := l.CreateTable(len(r), 0)
		for i, element := range r {
			t.RawSetInt(i+1, toLua(l, element))
		}
		return t
	}
	return lua.LFalse
}

// fromLua converts the result of a script to a reply.
func fromLua(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LString:
		return string(v)
	case lua.LNumber:
		return int64(v)
	case lua.LBool:
		if v {
			return int64(1)
		}
	case *lua.LTable:
		if err := v.RawGetString("err"); err != lua.LNil {
			return resp.Failure(lua.LVAsString(err))
		}
		if ok := v.RawGetString("ok"); ok != lua.LNil {
			return resp.Status(lua.LVAsString(ok))
		}
		replies := []any{}
		for i := 1; ; i++ {
			element := v.RawGetInt(i)
			if element == lua.LNil {
				return replies
			}
			replies = append(replies, fromLua(element))
		}
	}
	return nil
}
