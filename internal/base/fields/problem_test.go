package fields

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTextOfProblemHasPlacePathAndReason(t *testing.T) {
	for want, p := range map[string]Problem{
		"f:1:2: d > k: wrong": {"f", 1, 2, "d > k", "wrong"},
		"f:1: wrong":          {File: "f", Line: 1, Reason: "wrong"},
		"f: d: wrong":         {File: "f", Path: "d", Reason: "wrong"},
		"1:2: wrong":          {Line: 1, Column: 2, Reason: "wrong"},
		"wrong":               {Reason: "wrong"},
	} {
		assert.Equal(t, want, p.String())
	}
	assert.Equal(t, "f: a\ng: b", Problems{{File: "f", Reason: "a"}, {File: "g", Reason: "b"}}.Error())
}
