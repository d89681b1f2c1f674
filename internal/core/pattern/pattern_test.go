package pattern_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

func TestNew(t *testing.T) {
	t.Parallel()
	compile := pattern.New(`^a+$`)
	if first := compile(); !first.MatchString("aa") || compile() != first {
		t.Error("it does not match, or is compiled twice")
	}
	defer func() {
		if recover() == nil {
			t.Error("an invalid expression does not panic")
		}
	}()
	pattern.New(`(`)()
}
