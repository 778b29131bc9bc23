package statsd

import (
	"regexp"
	"strconv"
)

// Mogrifier renames metrics for DogStatsD. Parts of the old name can become tags. The incumbent uses the word mogrifier.
type Mogrifier struct {
	Pattern *regexp.Regexp
	Name    string // $0 stands for the text that Pattern matches, $1 for the first group
	Tags    []Tag  // the values can contain $0, $1 and so on
}

// applyMogrifiers returns the new name and the tags of a metric, which the first Mogrifier with a matching Pattern sets.
// If no Pattern matches, the metric keeps its name.
func applyMogrifiers(mogrifiers []Mogrifier, name string) (string, []Tag) {
	for _, m := range mogrifiers {
		groups := m.Pattern.FindStringSubmatch(name)
		if groups == nil {
			continue
		}
		var tags []Tag
		for _, t := range m.Tags {
			tags = append(tags, Tag{t.Name, expand(t.Value, groups)})
		}
		return expand(m.Name, groups), tags
	}
	return name, nil
}

var groupNumber = regexp.MustCompile(`\$\d+`)

// expand replaces $0, $1 and so on by the groups of a match. $9 stays if there is no group 9.
func expand(text string, groups []string) string {
	return groupNumber.ReplaceAllStringFunc(text, func(reference string) string {
		i, err := strconv.Atoi(reference[1:])
		if err != nil || i >= len(groups) {
			return reference
		}
		return groups[i]
	})
}
