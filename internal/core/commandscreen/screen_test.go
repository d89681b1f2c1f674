package commandscreen_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/commandscreen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const fork = ":(){ :|:& };:"

// lines are what a shell is given, by the action they deserve.
func lines() map[commandscreen.Action][]string {
	return map[commandscreen.Action][]string{
		commandscreen.Deny: {
			// Named by the screens of old, and what got past them.
			"rm -rf /", "rm -rf /*", "mkfs", "mkfs.ext4 /dev/sda1", "mkfs -t ext4 /dev/sda", "dd if=/dev/zero",
			"dd if=/dev/zero of=/workspace/file", "dd if=/dev/zero of=/dev/sda", ":(){:|:&};:", fork,
			"chmod -R 777 /", "chown -R nobody /", "chown -R root:root /usr", "CHMOD -R 777 /",
			"rm -r -f /", "rm -fr /", "rm  -rf   /", "rm -rf\t/", "rm -rf -- /", "rm -fr -- //", "rm -rf /.",
			"rm -rf /..", "rm -rf /./", "rm --recursive --force --no-preserve-root /", "rm --recurs /", "rm / -rf",
			"rm -Rf /", "rm -rfv /", "rm -rf /usr", "rm -rf /etc/", "rm -rf /var/*", "rm -rf /workspace/../etc",
			"rm -rf /workspace /", "rm -rf / tmp/x", "rm -rf /{bin,usr}", "rm -rf /{tmp/x,u{s,}r}", "rm -rf /b*",
			"rm -rf /.*", "rm -rf /*/*", "rm -rf /lib64", "rm -rf /usr/bin", "rm -rf /home/*", "rm /bin/*",
			`rm -rf "/"`, `rm -rf '/'`, `"rm" -rf /`, `r''m -rf /`, `r\m -rf /`, `\rm -rf /`, `rm "-rf" /`, `rm -rf /''`,
			`rm -rf $'\x2f'`, `$'\162m' -rf /`, `rm -rf "/"*`,
			"X=/; rm -rf $X", "X=/\nrm -rf \"$X\"", `A=r B=m; $A$B -rf /`, `X="rm -rf /"; $X`, "rm${IFS}-rf${IFS}/",
			"export D=/; rm -rf ${D}", "rm -rf ${UNSET:-/}", "rm -rf ${X:=/}", "X=/; Y=$X; rm -rf $Y", "X=(-rf /); rm ${X[@]}",
			"sh -c 'rm -rf /$*'", "rm -rf $(echo /)", "rm -rf `echo /`", "$(echo rm) -rf /", "$(printf 'r%s' m) -rf /", "X=rm; X+=' -rf /'; $X",
			"X=rm_-rf_/; ${X//_/ }", "for d in /bin /usr; do rm -rf $d; done", "set -- /; rm -rf $1", "f() { rm -rf $1; }; f /",
			"read X <<< /; rm -rf $X", "echo / | while read d; do rm -rf $d; done",
			"cd / && rm -rf *", "cd /; rm -rf ./*", "cd /usr/.. && rm -rf .", "(cd /usr; rm -rf *)", "cd /tmp; cd ..; rm -rf *",
			"cd /; find . -delete", "pushd /; rm -rf .",
			"echo x; rm -rf /", "true && rm -rf /", "false || rm -rf /", "rm -rf / &", "! rm -rf /", "{ rm -rf /; }",
			"if true; then rm -rf /; fi", "if a; then b; elif c; then d; else rm -rf /; fi", "while :; do rm -rf /; done",
			"case x in x) rm -rf / ;; esac", "f() { rm -rf /; }", "echo $(rm -rf /)", "x=$(rm -rf /)", "[[ -n $(rm -rf /) ]]",
			"((x = $(rm -rf /)))", "cat <(rm -rf /)", "time rm -rf /", "rm -rf / # gone", "rm -rf / 2>/dev/null",
			"echo \"`rm -rf /`\"", "cat <<EOF\n$(rm -rf /)\nEOF", "coproc rm -rf /", "rm -rf \\\n/",
			"sudo rm -rf /", "sudo -u root -- rm -rf /", "sudo --user root rm -rf /", "sudo A=b rm -rf /", "env A=b rm -rf /",
			"env -i rm -rf /", "env -S 'rm -rf /'", "nohup rm -rf / &", "timeout 5 rm -rf /", "timeout -s KILL 5 rm -rf /",
			"nice -n 10 rm -rf /", "command rm -rf /", "exec rm -rf /", "busybox rm -rf /", "/bin/rm -rf /",
			"/usr/bin/env rm -rf /", "setsid nohup rm -rf /", "xargs rm -rf /", "stdbuf -oL rm -rf /", "doas rm -rf /",
			"su -c 'rm -rf /'", "su root -c 'rm -rf /'", "flock /tmp/l -c 'rm -rf /'", "flock /tmp/l rm -rf /",
			"watch rm -rf /", "chroot /mnt rm -rf /", "strace -f -o /tmp/x rm -rf /", "ionice -c 3 rm -rf /",
			`sh -c "rm -rf /"`, `bash -lc 'rm -rf /'`, `sh -ec "rm -rf /"`, `bash -o pipefail -c 'rm -rf /'`,
			`sh -c 'rm -rf "$1"' x /`, `bash -c "bash -c 'rm -rf /'"`, `eval "rm -rf /"`, `eval rm -rf /`, `eval "r""m -rf /"`,
			"sh <<EOF\nrm -rf /\nEOF", "bash -s <<'EOF'\nrm -rf /\nEOF", "sh <<< 'rm -rf /'", "echo 'rm -rf /' | sh",
			"printf 'rm -rf /\\n' | bash", "cat <<EOF | sh\nrm -rf /\nEOF", "echo 'rm -rf /' | sudo bash -s", "echo rm -rf / | tee x | sh",
			"sh <(echo rm -rf /)", "source <(echo rm -rf /)", "echo 'rm -rf /' > x.sh; sh x.sh", "echo 'rm -rf /' >x; . x",
			"cat > a.sh <<EOF\nrm -rf /\nEOF\nchmod +x a.sh\n./a.sh", "trap 'rm -rf /' EXIT", "alias x='rm -rf /'",
			"echo / | xargs rm -rf", "echo / | xargs -I{} rm -rf {}", "find / | xargs rm -rf", "ls -d /* | xargs rm -rf",
			"find / -delete", "find / -type f -delete", "find / -exec rm -rf {} +", `find / -type f -exec rm {} \;`,
			"find / ! -name x -delete", "find -L / -delete", "find /usr /tmp -delete", "find / -name '*' -delete",
			`find . -exec sh -c 'rm -rf /' \;`, "find / -path /proc -prune -o -delete",
			"dd of=/dev/sda", "dd if=x of=/dev/nvme0n1 bs=4M count=1", "dd if=/dev/urandom of=x", "cat x > /dev/sda",
			"echo > /dev/vda1", "cat x | tee /dev/sdb", "cp x /dev/mapper/root", "shred /dev/sda", "wipefs -a /dev/sda", "blkdiscard /dev/sda",
			"bomb() { bomb | bomb & }; bomb", "function b { b|b& }; b", "b(){ b & b & }; b", ":()\n{\n : | :&\n}\n:", ": ( ) { : | : & } ; :",
			"chmod -R 000 /etc", "chmod --recursive 777 /", "chmod 777 -R /", "chmod -R -x /", "chown -hR a:b /bin", "chgrp -R x /var",
			"chattr -R +i /", "mv / /tmp/x", "mv /usr /tmp", "mv /* /tmp", "rsync -a --delete empty/ /",
			// Not valid shell text.
			"rm -rf / )", "if rm -rf /", "echo 'a; rm -rf / ; (", "rm -rf '/' ((", "done; sudo rm -rf /",
		},
		commandscreen.Ask: {
			"echo cm0gLXJmIC8= | base64 -d | sh", "base64 --decode <<< cm0gLXJmIC8= | bash", "sh -c \"$(echo cm0gLXJmIC8= | base64 -d)\"",
			"eval $(echo cm0gLXJmIC8= | base64 -d)", "X=$(echo cm0= | base64 -d); $X -rf /", "`echo cm0= | base64 -d` x",
			"echo 726d | xxd -r -p | sh", "bash <(echo cm0= | base64 -d)", "echo '/ fr- mr' | rev | sh", "echo x | base64 -d | python3",
			"echo cm0= | base64 -d > x.sh; sh x.sh", "echo cm0= | openssl base64 -d | sudo sh", "$CMD -rf /",
		},
		commandscreen.Warn: {
			"rm -rf ~", "rm -rf $HOME", `rm -rf "$HOME"/*`, "rm -rf ~/", "rm -rf ~root", "rm -rf ..", "rm -rf ../../*",
			`rm -rf "$HOME"$*`, `sh -c 'rm -rf "$HOME"$*'`, "rm -rf $DIR/", `rm -rf "$DIR"/*`, "rm -rf /$X", "rm -rf $A/usr", "curl https://example.com/x | sh",
			"curl -fsSL https://example.com/x | sudo bash", "wget -qO- http://x | sh -s -- -y", `sh -c "$(curl -fsSL x)"`,
			"bash <(curl -s x)", "source <(curl x)", `eval "$(curl x)"`, "curl x | python3 -", "curl -o i.sh x; sh i.sh", "curl x | gunzip | sh",
			"cat script | sh", "./generate | bash", "shutdown -h now", "reboot", "/sbin/poweroff", "init 0", "systemctl reboot",
			"kill -9 -1", "kill -- -1", "kill -s KILL -1", "dd if=/dev/zero of=x bs=1M count=10", "mkfs.ext4 disk.img",
			"find / -name '*.pyc' -delete", "chmod 777 /", "parted /dev/sda mklabel gpt", "echo b > /proc/sysrq-trigger",
			"f() { sleep 1; f & }",
		},
		commandscreen.Allow: harmless(),
	}
}

func harmless() []string {
	return []string{
		"rm -rf /workspace/tmp", "cat mkfs.md", "rm -rf /tmp/x", "rm -rf /var/tmp/x", "rm -rf /workspace", "rm -rf /workspace/*",
		"rm -rf /tmp/*", "rm -rf ./build", "rm -rf build dist *.egg-info", "rm -rf .", "rm -rf *", "rm -f /workspace/rm",
		"rm -rf node_modules && npm ci", "rm -rf /var/lib/apt/lists/*", "rm -rf ../build", "rm -rf \"$DIR\"", "rm -rf ${DIR:?}/*",
		"rm -rf /usr/local/lib/x", "rm -rf /home/me/project", "rm -rf ~/.cache", "rm -rf $HOME/.cache/pip", "rm -rf /root/.npm",
		"rm -rf /opt/x", "rm -rf /usrlocal", "rm file", "rm -i a b", "rm --help",
		"echo rm -rf /", "echo 'rm -rf /'", `echo ":(){ :|:& };:"`, "grep -r 'rm -rf /' .", "git commit -m 'do not rm -rf /'",
		"man mkfs", "cat /etc/passwd", "ls /", "ls -la /dev", "grep mkfs README", "vim mkfs.c", "command -v mkfs", "which dd",
		"dd if=a of=b", "dd if=disk.img of=copy.img bs=1M", "dd if=/dev/urandom of=key bs=32 count=1", "echo x > /dev/null",
		"make 2>/dev/stderr", "cat </dev/zero | head -c 10", "cat x > /dev/tty", "echo x >/dev/shm/y",
		"chmod -R 755 /workspace", "chmod +x script.sh", "chmod 644 /etc/hosts", "chown -R app:app /workspace/x", "chown app /opt/app",
		"chmod -R u+w .", "cd / && chown -R root workspace", "find . -name '*.pyc' -delete", "find /workspace -delete", "find / -name x",
		"find / -type f -name '*.py' -exec grep -l x {} +", "find src -type f | xargs grep x", "find . -exec echo {} \\;",
		"mv a b", "mv /workspace/a /workspace/b", "mv build /usr/local/x", "cp -r /etc /workspace/etc", "tar -C / -czf x.tgz etc",
		"cd /tmp && rm -rf *", "(cd / && ls); rm -rf *", "cd /; rm -rf tmp/x", "cd / | cat; rm -rf *",
		"kill 1", "kill -9 123", "kill -1 123", "kill %1", "init", "systemctl status", "reboot-helper", "halt.py",
		"python3 -m http.server", "python3 -c 'print(1)'", "pip install -r requirements.txt", "go test ./... -run 'Test(A|B)'",
		"for i in 1 2 3; do echo $i; done", "for f in *.txt; do mv \"$f\" \"${f%.txt}.md\"; done", "if [ -f x ]; then . ./x; fi",
		"f() { echo $1; }; f a; f b", "fact() { if [ $1 -gt 1 ]; then fact $(($1-1)); fi; }; fact 5", "a | b & c",
		"curl https://example.com | jq .", "curl -o x.tgz https://example.com/x.tgz", "curl -s x > y.json", "echo aGk= | base64 -d",
		"base64 -d x.b64 > x.png", "sh script.sh", "bash -c 'echo hi'", "sh", "echo ls | sh", "eval \"$(ssh-agent -s)\"", "eval $(pyenv init -)",
		"source venv/bin/activate", "export PATH=$PATH:/usr/local/bin", "X=/; ls $X", "sudo apt-get install -y git", "env A=b make",
		"xargs -n1 echo < list", "timeout 5 sleep 1", "cat <<EOF > x.sh\nrm -rf /\nEOF", "sed -i 's/rm -rf \\///' x", "mkdir -p /workspace/{a,b}",
		"awk '{print $1}' f", "test -e / && echo yes", "ssh host uptime", "true", "", "   ", "# rm -rf /", "echo $((1+2))", "shutdown_hook=1",
		"docker build -t x .", "git clean -fdx", "rsync -a src/ dst/", "rsync -a --delete src/ /workspace/dst/", "tee log < x",
		"'rm -rf /'x", "alias rm='rm -i'", "trap 'rm -rf \"$tmp\"' EXIT", "tmp=$(mktemp -d); rm -rf \"$tmp\"", "type rm", "fdisk -l /dev/sda",
		"npm run build -- --mode=production", "echo 'unbalanced", "if [ 1", "))) echo",
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	for want, list := range lines() {
		for _, line := range list {
			v := commandscreen.Default().CheckText(line)
			if v.Action != want {
				t.Errorf("%q: %+v, want %v", line, v, want)
			}
			if (v.Action == commandscreen.Allow) != (v.Rule == "") || (v.Action != commandscreen.Allow && (v.Text == "" || v.Reason == "")) {
				t.Errorf("%q: %+v is not whole", line, v)
			}
			if again := commandscreen.Default().Check([]string{"sh", "-c", line}); again.Action != v.Action {
				t.Errorf("%q by sh -c: %v, want %v", line, again.Action, v.Action)
			}
		}
	}
	if n := len(harmless()); n < 60 {
		t.Errorf("only %d harmless lines", n)
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args string // divided by commas
		want commandscreen.Action
	}{
		{"rm,-rf,/", commandscreen.Deny},
		{"rm,-rf,/*", commandscreen.Deny},
		{"rm -rf /", commandscreen.Deny}, // one element that is a line
		{":(){:|:&};:", commandscreen.Deny},
		{"/bin/sh,-c,rm -rf /", commandscreen.Deny},
		{"env,A=b,sh,-c,rm -rf /", commandscreen.Deny},
		{"sh,-c,rm -rf \"$1\",sh,/", commandscreen.Deny},
		{"bash,-lc,sudo rm -fr //", commandscreen.Deny},
		{"nohup,timeout,5,rm,-rf,/", commandscreen.Deny},
		{"xargs,rm,-rf,/", commandscreen.Deny},
		{"find,/,-delete", commandscreen.Deny},
		{"\x00rm,-rf,/", commandscreen.Deny},
		{"rm,-rf,$HOME", commandscreen.Allow}, // no shell, no variable
		{"echo,rm -rf /", commandscreen.Allow},
		{"echo,;,rm,-rf,/", commandscreen.Allow},
		{"git,commit,-m,rm -rf /; mkfs", commandscreen.Allow},
		{"mkfs.md", commandscreen.Deny}, // as a program it is one
		{"cat,mkfs.md", commandscreen.Allow},
		{"python3,-c,print('rm -rf /')", commandscreen.Allow},
		{"ls", commandscreen.Allow},
		{"", commandscreen.Allow},
	} {
		if v := commandscreen.Default().Check(strings.Split(tc.args, ",")); v.Action != tc.want {
			t.Errorf("%q: %+v, want %v", tc.args, v, tc.want)
		}
	}
	if v := commandscreen.Default().Check(nil); v.Action != commandscreen.Allow {
		t.Errorf("nothing: %+v", v)
	}
}

func TestUnclear(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"ls": false, "rm -rf /": false, "echo 'unbalanced": true, "rm -rf / )": true, ":(){:|:&};:": true,
	} {
		if v := commandscreen.Default().CheckText(line); v.Unclear != want || (want && v.Reason == "") {
			t.Errorf("%q: %+v, want unclear %v with a reason", line, v, want)
		}
	}
}

func TestErr(t *testing.T) {
	t.Parallel()
	v := commandscreen.Default().CheckText("echo hello; sudo rm  -rf / ")
	err := v.Err()
	const want = "Command contains potentially dangerous operation: rm -rf / (it deletes the system)"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	if !errors.Is(err, sandpit.PermissionDenied) || sandpit.HintOf(err) == "" {
		t.Errorf("code %q, hint %q", sandpit.CodeOf(err), sandpit.HintOf(err))
	}
	if err := commandscreen.Default().CheckText("ls").Err(); err != nil {
		t.Errorf("an error for what is allowed: %v", err)
	}
	long := commandscreen.Default().CheckText("rm -rf / a\x1b[31m" + strings.Repeat("\u00fc", 400))
	if len(long.Text) > 200 || strings.ContainsAny(long.Text, "\x1b\n") {
		t.Errorf("shows %q", long.Text)
	}
}

func TestUserRules(t *testing.T) {
	t.Parallel()
	p := commandscreen.Default()
	p.Deny = []commandscreen.Rule{{Program: "git", Args: []string{"push", "*force*"}, Reason: "history is shared"}, {Program: "nc*"}}
	p.Ask = []commandscreen.Rule{{Program: "terraform", Args: []string{"apply"}}}
	p.Warn = []commandscreen.Rule{{Program: "docker"}}
	p.Allow = []commandscreen.Rule{{Program: "mkfs.*"}, {Program: "sh"}, {Program: "rm", Args: []string{"/home/*"}}}
	p.Dir = "/"
	for line, want := range map[string]commandscreen.Action{
		"git push": commandscreen.Allow, "git push --force": commandscreen.Deny, "git push --force-with-lease x": commandscreen.Deny, "git log --force": commandscreen.Allow,
		"sh -c 'git push --force'": commandscreen.Deny, "sudo nc -l": commandscreen.Deny, "ncat x": commandscreen.Deny, "nice x": commandscreen.Allow,
		"terraform apply": commandscreen.Ask, "terraform plan": commandscreen.Allow, "docker ps": commandscreen.Warn, "mkfs.ext4 /dev/sda": commandscreen.Allow,
		"mkfs /dev/sda": commandscreen.Deny, "sh -c 'rm -rf /'": commandscreen.Deny, "rm -rf /home/*": commandscreen.Allow, "rm -rf *": commandscreen.Deny, "cd tmp; rm -rf *": commandscreen.Allow,
	} {
		if v := p.CheckText(line); v.Action != want {
			t.Errorf("%q: %+v, want %v", line, v, want)
		}
	}
	if v := p.CheckText("git push --force"); v.Rule != "user" || v.Reason != "history is shared" || !strings.Contains(sandpit.HintOf(v.Err()), "screen_deny") {
		t.Errorf("%+v", v)
	}
	if v := (commandscreen.Policy{NoBuiltin: true}).CheckText("rm -rf /"); v.Action != commandscreen.Allow {
		t.Errorf("without rules: %+v", v)
	}
	// Whatever holds for find does not hold for the commands that it runs.
	const found = "find . -exec git push --force {} +"
	for name, p := range map[string]commandscreen.Policy{
		"no built-in rules": {Deny: p.Deny, NoBuiltin: true}, "find is allowed": {Deny: p.Deny, Allow: []commandscreen.Rule{{Program: "find"}}},
	} {
		if v := p.CheckText(found); v.Action != commandscreen.Deny {
			t.Errorf("%s: %q: %+v", name, found, v)
		}
	}
}

// TestBounds gives what would take for ever or all memory.
func TestBounds(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	many := func(s string) string { return strings.Repeat(s, 128<<10/len(s)) }
	for name, text := range map[string]string{
		"parentheses": many("("), "subshells": many("( "), "substitutions": many("$("), "backquotes": many("`"),
		"blocks": many("{ "), "ifs": many("if "), "cases": many("case x in a) "), "functions": many("f() "), "arrays": many("${a["),
		"arithmetic": "echo $((" + many("-") + "1))", "pipes": many("a|") + "a", "ands": many("a&&") + "a", "braces": "rm -rf " + many("{a,b}"),
		"nested braces": "rm " + many("{a,") + many("}"), "few braces": strings.Repeat("{a,b}", 400), "words": many("x "), "lines": many("x\n"),
		"quotes": many(`'"`), "huge": strings.Repeat("a ", 1<<20), "doubling": "X=aaaaaaaaaaaaaaaa\n" + strings.Repeat("X=$X$X$X$X\n", 50) + "rm $X",
		"replacing": "X=" + strings.Repeat("a", 60<<10) + "; Y=" + strings.Repeat("b", 60<<10) + "; ${X//a/$Y}", "recursion": "f() { f; f; f; f; }; f",
		"two functions": "f() { g; g; g; g; }; g() { f; f; f; f; }; f", "texts": many("eval "), "env": many("env "), "sh": strings.Repeat("sh -c '", 300),
		"nested functions": strings.Repeat("f() { f | ", 900) + "f" + strings.Repeat("; }", 900), "spread": "X=(" + many("/ ") + "); rm ${X[@]}${X[@]}${X[@]}",
		"printf": "printf '" + many("%s") + "' " + strings.Repeat("x ", 5000), "xargs": "echo " + strings.Repeat("x ", 20000) + "| xargs -I{} " + strings.Repeat("{} ", 20000),
		"finds": strings.Repeat("find / -exec ", 5000), "bomb names": many("a(){"), "self eval": `f() { eval "$1 $1" ; }; f 'f x; f y'`, "stars": "rm -rf /" + many("*a"),
		"files": many("<(a) "), "here": "sh <<A\n" + many("sh <<A\n"), "loops": many("for i in / / /; do "), "substitute": strings.Repeat("$(echo ", 1300) + strings.Repeat(")", 1300),
	} {
		begin := threadTime(t)
		v := commandscreen.Default().CheckText(text)
		if took := threadTime(t) - begin; took > 3*time.Second {
			t.Errorf("%s took %v: %v", name, took, v)
		}
	}
	// What is beyond the bounds is not let through unseen.
	if v := commandscreen.Default().CheckText(strings.Repeat("true\n", 1<<18) + "rm -rf /"); v.Action < commandscreen.Ask || !v.Unclear {
		t.Errorf("behind much text: %+v", v)
	}
	if v := commandscreen.Default().CheckText("rm -rf " + strings.Repeat("{a,b}", 20) + " /"); v.Action < commandscreen.Ask {
		t.Errorf("behind braces: %+v", v)
	}
}

// threadTime returns the processor time of the thread, which other programs of the machine
// do not change.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
