// Package lua has the scripts that make the decisions of package limit inside Redis. The script take contains the
// scripts of all algorithms, so one call of take charges many hits. The head of take.lua documents KEYS, ARGV and
// reply. The head of an algorithm's script documents the stored state. testdata/take.lua.golden has the whole script.
//
// Most hits are admitted. An algorithm with a packed state has a second script, NAME_admit, which admits hits with less
// work. The function step of the algorithm starts with the text of NAME_admit.
package lua

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.lua
var scriptFiles embed.FS

// source returns the text of the named script. The script of an algorithm is the body of a function. This function
// returns a table with the functions open, step and save.
func source(name string) string {
	text, err := scriptFiles.ReadFile(name + ".lua")
	if err != nil {
		panic(err) // can't fail: the files are part of the program
	}
	return string(text)
}

// Take returns the script for Redis, with the named algorithms.
func Take(algorithms ...string) string {
	var compileText, admitText strings.Builder
	for _, name := range algorithms {
		text := source(name)
		if packedText, err := scriptFiles.ReadFile(name + "_admit.lua"); err == nil {
			prepareText, hitText, _ := strings.Cut(string(packedText), hitMark)
			inserter := strings.NewReplacer(prepareMark, prepareText, hitMark, hitText)
			fmt.Fprintf(&admitText, "elseif name == %q then\n%s\n", name, inserter.Replace(source("packed_admit")))
			text = strings.Replace(text, admitMark, inserter.Replace(source("packed_step")), 1)
		}
		fmt.Fprintf(&compileText, "if name == %q then\n%s\nend\n", name, text)
	}
	functions := source("packed") + "local function compile(name)\n" + compileText.String() + "end\n"
	slowPath := strings.Replace(source("slow_path"), algorithmsMark, functions, 1)
	return strings.NewReplacer(slowPathMark, slowPath, admitMark, admitText.String()).Replace(source("take"))
}

// Marks are lines at which Take inserts other text.
const (
	algorithmsMark = "--[[algorithms]]\n"
	slowPathMark   = "--[[slow_path]]\n"
	admitMark      = "--[[admit]]\n"
	prepareMark    = "--[[prepare]]\n"
	hitMark        = "--[[hit]]\n"
)
