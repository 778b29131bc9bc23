package limitsfile

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

func TestEachFieldHasHelpForEditors(t *testing.T) {
	for _, r := range schema {
		assert.NotEmpty(t, r.help, r.Name)
		if r.Kind == fields.List && r.objects&fileObjects != 0 {
			assert.Contains(t, itemNames, r.Name)
		}
	}
}
