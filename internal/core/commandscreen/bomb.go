package commandscreen

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// bombSigns are the ways in which a function calls itself.
type bombSigns struct {
	calls            int
	pipe, background bool
}

// findBomb looks for the ways in which a function with a body calls itself.
func findBomb(budget *budget, name string, body *syntax.Stmt) (b bombSigns) {
	budget.walkNodes(body, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CallExpr:
			if callsItself(n, name) {
				b.calls++
			}
		case *syntax.Stmt:
			b.background = b.background || (n.Background && countCalls(budget, name, n) > 0)
		case *syntax.BinaryCmd:
			b.pipe = b.pipe || (isPipe(n) && countCalls(budget, name, n.X) > 0 && countCalls(budget, name, n.Y) > 0)
		}
		return true
	})
	return b
}

// countCalls counts the calls of a function below a node.
func countCalls(budget *budget, name string, node syntax.Node) (calls int) {
	budget.walkNodes(node, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.CallExpr); ok && callsItself(c, name) {
			calls++
		}
		return true
	})
	return calls
}

func callsItself(c *syntax.CallExpr, name string) bool {
	return len(c.Args) > 0 && c.Args[0].Lit() == name
}

// findSqueezedBomb returns the name of the function of a fork bomb without the spaces that bash
// requires, as it is usually quoted: :(){:|:&};:
func findSqueezedBomb(text string) (name string, ok bool) {
	squeezed := strings.Join(strings.Fields(text), "")
	for at := 0; ; {
		i := strings.Index(squeezed[at:], "(){")
		if i < 0 {
			return "", false
		}
		i += at
		at = i + 1
		begin := strings.LastIndexAny(squeezed[max(0, i-64):i], ";|&(){}") + 1 + max(0, i-64)
		name = squeezed[begin:i]
		if name != "" && strings.HasPrefix(squeezed[i+3:], name+"|"+name+"&") {
			return name, true
		}
	}
}

func forkBombFinding() finding {
	return finding{Deny, "fork-bomb", "a function that starts itself endlessly"}
}
