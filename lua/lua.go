// Package lua holds the scripts that do inside Redis what package limit does in
// this process: one per algorithm, and take, which composes them so that one call
// charges many hits of mixed algorithms. KEYS, ARGV and reply are documented at
// the head of take.lua, what each algorithm stores at the head of its script.
package lua

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.lua
var files embed.FS

// names are the algorithms that take knows, in the order of their codes.
var names = [...]string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"}

// Names are the scripts of the algorithms. A script's place is its code in the
// arguments of take.
func Names() []string { return names[:] }

// Source is the text of the named script. That of an algorithm is a function body
// which returns the algorithm's functions; "packed" is what the algorithms of
// small states share, and "take" drives them all.
func Source(name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(err) // the files are part of the program
	}
	return string(text)
}

// Take is the script to give to Redis. It compiles only the algorithms that a
// call has need of, as Redis runs all of a script's text at every call.
func Take() string {
	var b strings.Builder
	b.WriteString(Source("packed"))
	b.WriteString("local compile, algorithms = {}, {}\n")
	for code, name := range names {
		fmt.Fprintf(&b, "compile[%d] = function()\n%s\nend\n", code, Source(name))
	}
	b.WriteString(Source("take"))
	return b.String()
}
