package boundedyaml

import "strings"

// countNodes returns about how many nodes the parser makes of data. It stops above most and
// returns the line where it stopped, from 1.
//
// The count is exact for rules in block style and in JSON. It is too high for punctuation in
// text. For lists of pairs such as [a: b], it is too low by a third.
func countNodes(data []byte, most int) (count, line int) {
	count, line = 1, 1
	hasText, hasColon := false, false // of the item of a list in brackets
	for i, c := range data {
		if c <= ' ' {
			if c == '\n' {
				line++
			}
			continue
		}
		switch c {
		case ':':
			if isWordEnd(data, i+1) || i > 0 && strings.IndexByte(`"'}]`, data[i-1]) >= 0 {
				count += 2 // a key and its value
				hasColon = true
			}
			hasText = true
		case '?':
			if isWordEnd(data, i+1) {
				count += 2
			}
			hasText = true
		case '-':
			if isWordEnd(data, i+1) {
				count++
			}
			hasText = true
		case '[', '{':
			count++
			hasText, hasColon = false, false
		case ',', ']', '}':
			if hasText && !hasColon {
				count += 2 // a word in {} is a key without a value
			}
			hasText, hasColon = false, false
		default:
			hasText = true
		}
		if count > most {
			return count, line
		}
	}
	return count, line
}

// isWordEnd reports whether a plain word can't go on at data[i]. Line breaks of YAML that are
// not ASCII count as ends.
func isWordEnd(data []byte, i int) bool {
	return i >= len(data) || data[i] <= ' ' || data[i] >= 0x80 || strings.IndexByte(",[]{}", data[i]) >= 0
}
