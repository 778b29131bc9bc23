package descriptors

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCounterPrefixNamesTheStartOfKeys(t *testing.T) {
	for text, want := range map[string]struct {
		start        string
		endsAnywhere bool
	}{
		"shop":                        {"shop|", true},
		"a%7Cb":                       {"a%7Cb|", true},
		"shop|tenant=acme":            {"shop|tenant=acme", false},
		"shop|tenant=":                {"shop|tenant=", false},
		"shop|tenant":                 {"shop|tenant=", true},
		"shop|tenant=acme|path":       {"shop|tenant=acme|path=", true},
		"shop|tenant=a%7Cb|path=/%25": {"shop|tenant=a%7Cb|path=/%25", false},
	} {
		p, err := ParseCounterPrefix(text)
		require.NoError(t, err, text)
		start, endsAnywhere := p.KeyStart()
		assert.Equal(t, want.start, start, text)
		assert.Equal(t, want.endsAnywhere, endsAnywhere, text)
		assert.Equal(t, text, p.String())
	}
	for text, want := range map[string]string{
		"":                 "prefix is empty; want DOMAIN",
		"|k=v":             "no domain",
		"shop|tenant|path": "got the key tenant without a value",
		"shop|path=/api/*": "leave the value out for all values",
		"shop|=x":          "no key",
		"sh%zz":            "hexadecimal",
	} {
		_, err := ParseCounterPrefix(text)
		assert.ErrorContains(t, err, want, text)
	}
}
