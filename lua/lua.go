// Package lua has the scripts that compute inside Redis the same as package limit. Each algorithm has a script. The script take composes them, so that one call
// charges many hits of several algorithms. The head of take.lua documents KEYS, ARGV and
// reply. The head of an algorithm's script documents the state that the script stores.
package lua

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.lua
var files embed.FS

// source returns the text of the named script. The script of an algorithm is the body of a
// function that returns the functions open, copy, step and save. The script "packed" is
// shared by the algorithms of small states.
func source(name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(err) // the files are part of the program
	}
	return string(text)
}

// Take returns the script for Redis, with the named algorithms. Redis runs all of a
// script's text at every call, so the script compiles only the algorithms that a call
// needs.
func Take(algorithms ...string) string {
	var b strings.Builder
	b.WriteString(source("packed"))
	b.WriteString("local compile = {}\n")
	for _, name := range algorithms {
		fmt.Fprintf(&b, "compile[%q] = function()\n%s\nend\n", name, source(name))
	}
	b.WriteString(source("take"))
	return b.String()
}
