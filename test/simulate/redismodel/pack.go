package redismodel

import (
	"encoding/binary"
	"math"

	"github.com/tinylib/msgp/msgp"
	lua "github.com/yuin/gopher-lua"
)

// packMessage is cmsgpack.pack for numbers, strings, booleans and arrays.
func packMessage(l *lua.LState) int {
	l.Push(lua.LString(appendMessage(l, nil, l.CheckAny(1))))
	return 1
}

func appendMessage(l *lua.LState, b []byte, v lua.LValue) []byte {
	switch v := v.(type) {
	case lua.LBool:
		return msgp.AppendBool(b, bool(v))
	case lua.LString:
		return msgp.AppendString(b, string(v))
	case lua.LNumber:
		n := float64(v)
		switch {
		case n == math.Trunc(n) && n >= 0 && n < math.MaxInt64:
			return msgp.AppendUint64(b, uint64(n))
		case n == math.Trunc(n) && n > math.MinInt64 && n < 0:
			return msgp.AppendInt64(b, int64(n))
		case float64(float32(n)) == n:
			return msgp.AppendFloat32(b, float32(n))
		}
		return msgp.AppendFloat64(b, n)
	case *lua.LTable:
		size := v.Len()
		b = msgp.AppendArrayHeader(b, uint32(size))
		for i := range size {
			b = appendMessage(l, b, v.RawGetInt(i+1))
		}
		return b
	}
	l.RaiseError("redismodel: cmsgpack can't pack a %s", v.Type())
	return b
}

// unpackMessage is cmsgpack.unpack for one value.
func unpackMessage(l *lua.LState) int {
	v, _, err := msgp.ReadIntfBytes([]byte(l.CheckString(1)))
	if err != nil {
		l.RaiseError("Bad data format in input.")
	}
	l.Push(messageValue(l, v))
	return 1
}

func messageValue(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case int64:
		return lua.LNumber(v)
	case uint64:
		return lua.LNumber(v)
	case float32:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []byte:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case []any:
		t := l.CreateTable(len(v), 0)
		for i, element := range v {
			t.RawSetInt(i+1, messageValue(l, element))
		}
		return t
	case nil:
		return lua.LNil
	}
	l.RaiseError("redismodel: cmsgpack can't unpack a %T", v)
	return lua.LNil
}

// doubles returns the number of doubles in a format of struct, such as <dd. Scripts use no
// other formats.
func doubles(l *lua.LState, format string) int {
	if format == "" || format[0] != '<' {
		l.RaiseError("redismodel: format %s: want < and d", format)
	}
	for _, c := range format[1:] {
		if c != 'd' {
			l.RaiseError("redismodel: format %s: want < and d", format)
		}
	}
	return len(format) - 1
}

// packStruct is struct.pack for doubles.
func packStruct(l *lua.LState) int {
	var b []byte
	for i := range doubles(l, l.CheckString(1)) {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(l.CheckNumber(i+2))))
	}
	l.Push(lua.LString(b))
	return 1
}

// unpackStruct is struct.unpack for doubles. Its last result is the place after them.
func unpackStruct(l *lua.LState) int {
	count, b := doubles(l, l.CheckString(1)), l.CheckString(2)
	if len(b) < 8*count {
		l.RaiseError("data string too short")
	}
	for i := range count {
		l.Push(lua.LNumber(math.Float64frombits(binary.LittleEndian.Uint64([]byte(b[8*i : 8*i+8])))))
	}
	l.Push(lua.LNumber(8*count + 1))
	return count + 1
}
