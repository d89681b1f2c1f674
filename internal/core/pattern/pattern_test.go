package pattern_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

func TestNew(t *testing.T) {
	t.Parallel()
	compile := pattern.New(`^a+$`)
	if !compile().MatchString("aa") || compile() != compile() {
		t.Error("it does not match, or is compiled twice")
	}
	defer func() {
		if recover() == nil {
			t.Error("an invalid expression does not panic")
		}
	}()
	pattern.New(`(`)()
}
