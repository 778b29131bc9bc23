package env

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/statsd"
)

func TestMetricsGoWhereTheIncumbentSendsThem(t *testing.T) {
	for variables, want := range map[string]string{
		"":                                        SinkNone,
		"USE_STATSD=true":                         SinkStatsd,
		"USE_STATSD=true USE_PROMETHEUS=true":     SinkStatsd,
		"USE_DOG_STATSD=true":                     SinkDogStatsd,
		"USE_STATSD=false USE_DOG_STATSD=true":    SinkDogStatsd,
		"USE_STATSD=false USE_PROMETHEUS=true":    SinkNone,
		"USE_STATSD=false":                        SinkLog,
		"USE_STATSD=false DISABLE_STATS=true":     SinkNone,
		"USE_STATSD=true DISABLE_STATS=true":      SinkNone,
		"USE_DOG_STATSD=true DISABLE_STATS=true":  SinkNone,
		"USE_STATSD=true DISABLE_STATS=false":     SinkStatsd,
		"USE_PROMETHEUS=true STATSD_HOST=example": SinkNone,
		"STATSD_HOST=example":                     SinkStatsd,
		"STATSD_PORT=9125":                        SinkStatsd,
		"STATSD_HOST=example USE_STATSD=false":    SinkLog,
		"STATSD_HOST=h USE_DOG_STATSD=true":       SinkDogStatsd,
		"STATSD_HOST=h DISABLE_STATS=true":        SinkNone,
	} {
		t.Run(variables, func(t *testing.T) {
			settings, _, err := read(t, parseVariables(variables))
			require.NoError(t, err)
			assert.Equal(t, want, settings.StatsSink())
		})
	}
}

// parseVariables parses NAME=value NAME=value.
func parseVariables(text string) map[string]string {
	variables := map[string]string{}
	for variable := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(variable, "=")
		variables[name] = value
	}
	return variables
}

func TestStatsSettingsWithoutEffectAreReported(t *testing.T) {
	for variables, want := range map[string]string{
		"USE_PROMETHEUS=true STATSD_HOST=h STATSD_PORT=1":     "STATSD_HOST,STATSD_PORT neither USE_STATSD nor USE_DOG_STATSD is true",
		"USE_STATSD=false STATSD_PROTOCOL=udp":                "STATSD_PROTOCOL neither USE_STATSD nor USE_DOG_STATSD is true",
		"USE_DOG_STATSD=true STATSD_PROTOCOL=tcp":             "STATSD_PROTOCOL DogStatsD is always reached over UDP",
		"USE_DOG_STATSD=true STATSD_PROTOCOL=udp":             "",
		"USE_STATSD=true USE_DOG_STATSD_MOGRIFIERS=A":         "USE_DOG_STATSD_MOGRIFIERS USE_DOG_STATSD is not true",
		"DISABLE_STATS=true USE_STATSD=true USE_PROMETHEUS=1": "USE_PROMETHEUS,USE_STATSD DISABLE_STATS=true turns these settings off",
		"USE_STATSD=true STATSD_HOST=h":                       "",
	} {
		t.Run(variables, func(t *testing.T) {
			_, warnings, err := read(t, parseVariables(variables))
			require.NoError(t, err)
			if want == "" {
				assert.Empty(t, warnings)
				return
			}
			require.Len(t, warnings, 1)
			assert.Equal(t, want, warnings[0].Setting+" "+warnings[0].Reason)
		})
	}
}

func TestTwoStatsServersAreRejected(t *testing.T) {
	_, _, err := read(t, map[string]string{"USE_STATSD": "true", "USE_DOG_STATSD": "true"})
	assert.ErrorContains(t, err, "USE_STATSD and USE_DOG_STATSD: got true for both, want true for one")
}

func TestMogrifiersAreReadInOrder(t *testing.T) {
	t.Setenv("DOG_STATSD_MOGRIFIER_B_PATTERN", `^b\.(.*)$`)
	t.Setenv("DOG_STATSD_MOGRIFIER_B_NAME", "b")
	t.Setenv("DOG_STATSD_MOGRIFIER_B_TAGS", "rest:$1, url:http://x")
	t.Setenv("DOG_STATSD_MOGRIFIER_A_PATTERN", ".")
	t.Setenv("DOG_STATSD_MOGRIFIER_A_NAME", "a")
	settings, _, err := read(t, map[string]string{"USE_DOG_STATSD": "true", "USE_DOG_STATSD_MOGRIFIERS": "b, A"})
	require.NoError(t, err)
	mogrifiers, errs := settings.Mogrifiers()
	require.Empty(t, errs)
	require.Len(t, mogrifiers, 2)
	assert.Equal(t, `^b\.(.*)$`, mogrifiers[0].Pattern.String())
	assert.Equal(t, "b", mogrifiers[0].Name)
	assert.Equal(t, []statsd.Tag{{Name: "rest", Value: "$1"}, {Name: "url", Value: "http://x"}}, mogrifiers[0].Tags)
	assert.Equal(t, "a", mogrifiers[1].Name)
}

func TestBadMogrifiersAreRejected(t *testing.T) {
	t.Setenv("DOG_STATSD_MOGRIFIER_A_PATTERN", "(")
	t.Setenv("DOG_STATSD_MOGRIFIER_A_TAGS", "x")
	_, _, err := read(t, map[string]string{"USE_DOG_STATSD": "true", "USE_DOG_STATSD_MOGRIFIERS": "A,B"})
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	assert.Equal(t, []string{
		"DOG_STATSD_MOGRIFIER_A_NAME: got no value, want one, because USE_DOG_STATSD_MOGRIFIERS has A",
		"DOG_STATSD_MOGRIFIER_A_PATTERN: error parsing regexp: missing closing ): `(`",
		`DOG_STATSD_MOGRIFIER_A_TAGS: got "x", want a list such as name:$1,name:value`,
		"DOG_STATSD_MOGRIFIER_B_PATTERN: got no value, want one, because USE_DOG_STATSD_MOGRIFIERS has B",
		"DOG_STATSD_MOGRIFIER_B_NAME: got no value, want one, because USE_DOG_STATSD_MOGRIFIERS has B",
	}, lines)
}

func TestExtraTagsNeedNamesAndValues(t *testing.T) {
	settings, _, err := read(t, map[string]string{"EXTRA_TAGS": "dc:eu, url:http://x"})
	require.NoError(t, err)
	assert.Equal(t, tags{"dc": "eu", "url": "http://x"}, settings.ExtraTags)
	for _, text := range []string{"dc", "dc:", ":eu", "dc:eu,"} {
		_, _, err := read(t, map[string]string{"EXTRA_TAGS": text})
		assert.ErrorContains(t, err, "EXTRA_TAGS: got", text)
	}
}
