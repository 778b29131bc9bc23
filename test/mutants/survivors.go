package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// survivors has the reasons why tests may miss mutants, by the names of the mutants. In its file, the
// reason stands after "# " above the names of all mutants with this reason.
type survivors map[string]string

// openReason is the reason of mutants that -keep adds.
const openReason = "open: a test is missing"

func readSurvivors(file string) (survivors, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all, reason := survivors{}, ""
	for i, line := range strings.Split(string(text), "\n") {
		comment, isComment := strings.CutPrefix(line, "# ")
		switch {
		case isComment:
			reason = comment
		case line == "":
		case reason == "":
			return nil, fmt.Errorf("%s:%d: got a mutant without a reason, want # and a reason above it", file, i+1)
		default:
			all[line] = reason
		}
	}
	return all, nil
}

func (s survivors) write(file string) error {
	byReason := map[string][]string{}
	for name, reason := range s {
		byReason[reason] = append(byReason[reason], name)
	}
	var sections []string
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		slices.Sort(byReason[reason])
		sections = append(sections, "# "+reason+"\n"+strings.Join(byReason[reason], "\n")+"\n")
	}
	return os.WriteFile(file, []byte(strings.Join(sections, "\n")), 0o600)
}
