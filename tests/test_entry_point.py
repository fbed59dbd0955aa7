"""The entry point of the command."""

from agilerl_like.__main__ import main


def test_ctrl_c_while_the_package_is_imported_ends_the_command_without_a_traceback(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main() == 130
    assert capsys.readouterr() == ("", "")
