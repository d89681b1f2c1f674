package tool_test

import "testing"

// testSecrets puts a secret where each bound cuts through it: no half of it may be told.
func testSecrets(t *testing.T, k kit) {
	t.Helper()
	needs(t, "python3", "--version")
	k.want("env_set", fields{"name": "TOKEN", "value": "s3cret-value", "secret": true})
	k.want("shell_exec", fields{"command": `
		printf '%29995s%s\n' '' "$TOKEN" > end
		{ printf '%1995s%s%100s\n' '' "$TOKEN" ''; } > line
		printf 'import os, sys\nfor s in sys.stdout, sys.stderr: print("x" * 14_995 + os.environ["TOKEN"] + "y" * 50_000, file=s)\n' > run.py
		(exec -a "$(printf '%4090s%s' '' "$TOKEN" | tr ' ' x)" sleep 987) &`})
	for _, tc := range []struct {
		tool string
		in   fields
	}{
		{"shell_exec", fields{"command": "cat end"}},
		{"grep", fields{"pattern": "s3cret", "path": "line"}},
		{"process_list", nil},
	} {
		k.lacks(k.want(tc.tool, tc.in, "***"), "s3c")
	}
	// A bound of no even number of secrets, whatever it is, cuts through one.
	k.want("shell_exec", fields{"command": `yes "$TOKEN" | tr -d '\n' | head -c 5000004`, "background": true})
	k.lacks(k.want("shell_wait", fields{"seconds": 30}, "***"), "s3c")
	k.lacks(k.want("shell_view", nil, "***"), "alu")
	k.lacks(k.want("python_exec", fields{"code": "exec(open('run.py').read())"}, "***"), "s3c")
}
